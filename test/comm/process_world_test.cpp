#include "troupe/comm/process/process_world.hpp"

#include "support/process_ranks.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <latch>
#include <string>
#include <vector>

namespace troupe::test {
namespace {

using std::chrono::milliseconds;

/// All ranks have the same failure; returns it.
Failure common(const std::vector<std::optional<Failure>>& failures) {
  for (const auto& failure : failures) {
    REQUIRE(failure);
    CHECK(*failure == *failures.front());
  }
  return *failures.front();
}

void no_failures(const std::vector<std::optional<Failure>>& failures) {
  for (const auto& failure : failures) {
    CHECK_MESSAGE(!failure, failure->text);
  }
}

/// The failure that the rank's world has sooner or later.
Failure await_failure(ProcessRank& own) {
  const TimePoint deadline = Clock::steady().now() + patience;
  while (!own.world->failure() && Clock::steady().now() < deadline) {
    std::this_thread::sleep_for(milliseconds{1});
  }
  static_cast<void>(own.settle());
  return own.world->failure().value_or(Failure{.text = "none"});
}

// ---- joining ------------------------------------------------------------------------------------

TEST_CASE("ranks join, sum, leave and end") {
  for (const int size : {1, 2, 3, 4, 7}) {
    std::atomic<int> right{0};
    no_failures(ProcessTrial{}.run(size, [&](ProcessRank& own) {
      const float mine = static_cast<float>(own.rank + 1);
      float sum = 0;
      REQUIRE(own.launch({.op = Collective::all_reduce,
                          .ticket = 1,
                          .input = &mine,
                          .output = &sum,
                          .numel = 1})
                  .ok());
      CHECK_FALSE(own.settle());
      right += sum == static_cast<float>(size * (size + 1) / 2) ? 1 : 0;
      own.world->leave(own.rank, "done");
      own.world->await_departures();
      CHECK_FALSE(own.world->failure());
    }));
    CHECK(right == size);
  }
}

TEST_CASE("a rank that does not come is named, on all that have") {
  const auto trial = [](ProcessWorldOptions& options) {
    options.join_timeout = milliseconds{200};
    options.world_size = 4;
  };
  const Failure failure =
      common(ProcessTrial{.change = trial}.run(2, [](ProcessRank&) { FAIL("joined"); }));
  CHECK(failure.code == ErrorCode::timeout);
  CHECK(failure.rank == 2);
  CHECK(failure.text.find(" ms for ranks 2 and 3 to join the world") != std::string::npos);
}

TEST_CASE("two processes with the same rank are both told") {
  const auto trial = [](ProcessWorldOptions& options) {
    options.rank = options.rank == 2 ? 1 : options.rank;
  };
  const Failure failure =
      common(ProcessTrial{.change = trial}.run(3, [](ProcessRank&) { FAIL("joined"); }));
  CHECK(failure.code == ErrorCode::bad_configuration);
  CHECK(failure.rank == 1);
  const bool one_order =
      failure.text == "two processes are rank 1: pid 101 on host7 and pid 102 on host7";
  const bool other_order =
      failure.text == "two processes are rank 1: pid 102 on host7 and pid 101 on host7";
  CHECK((one_order || other_order));
}

TEST_CASE("ranks with different world sizes do not come together") {
  const auto trial = [](ProcessWorldOptions& options) {
    options.world_size = options.rank == 1 ? 3 : 2;
  };
  const auto failures = ProcessTrial{.change = trial}.run(2, [](ProcessRank&) { FAIL("joined"); });
  for (const auto& failure : failures) {
    REQUIRE(failure);
    CHECK(failure->code == ErrorCode::bad_configuration);
    CHECK(failure->text.find("ranks were told different world sizes: ") == 0);
  }
}

TEST_CASE("a second process of a rank that comes later is refused, and the world goes on") {
  ProcessTrial trial;
  std::barrier<> met(3);
  no_failures(trial.run(3, [&](ProcessRank& own) {
    for (Ticket ticket = 1; ticket <= 40; ++ticket) {
      if (own.rank == 0) {
        ProcessWorldOptions options = quick_options(1, 3);
        options.name = "pid 999 on host7";
        try {
          const ProcessRank stranger(std::move(options), make_memory_store(trial.store), trial.hub,
                                     trial.collective_timeout);
          FAIL_CHECK("joined");
        } catch (const Error& error) {
          CHECK(std::string(error.what()) ==
                "two processes are rank 1: pid 101 on host7 and pid 999 on host7");
        }
      }
      met.arrive_and_wait();
      REQUIRE(own.barrier(ticket).ok());
      CHECK_FALSE(own.settle());
      CHECK_FALSE(own.world->failure());
    }
    own.world->leave(own.rank, "done");
    own.world->await_departures();
    CHECK_FALSE(own.world->failure());
  }));
}

// ---- failures -----------------------------------------------------------------------------------

TEST_CASE("the first failure reported is everybody's, and ends what waits") {
  for (const int size : {2, 3, 4, 7}) {
    std::vector<std::optional<Failure>> first(static_cast<std::size_t>(size));
    no_failures(ProcessTrial{}.run(size, [&](ProcessRank& own) {
      auto& heard = first[static_cast<std::size_t>(own.rank)];
      if (own.rank < 2) {  // two at once: one of them is the first
        heard = own.world->report({.code = ErrorCode::misuse,
                                   .text = "rank " + std::to_string(own.rank),
                                   .rank = own.rank});
        CHECK(own.world->failure() == heard);
        CHECK_FALSE(own.barrier(1).ok());
      } else {
        static_cast<void>(own.barrier(1));  // refused, if it is late
        heard = await_failure(own);
      }
    }));
    const Failure failure = common(first);
    CHECK((failure.rank == 0 || failure.rank == 1));
  }
}

TEST_CASE("a failure is heard once on each rank, whoever reports what behind it") {
  std::array<std::vector<std::string>, 3> heard;
  ProcessTrial trial;
  trial.change = [&heard](ProcessWorldOptions& options) {
    auto& own = heard[static_cast<std::size_t>(options.rank)];
    options.on_failure = [&own](std::uint64_t, const Failure& failure) {
      own.push_back(failure.text);
    };
  };
  no_failures(trial.run(3, [](ProcessRank& own) {
    if (own.rank == 1) {
      own.world->abort({.code = ErrorCode::device, .text = "no memory", .rank = 1});
      own.world->abort({.code = ErrorCode::device, .text = "again", .rank = 1});
    }
    static_cast<void>(own.barrier(1));
    CHECK(await_failure(own).text == "no memory");
    CHECK(own.world->report({.text = "late"}).text == "no memory");
  }));
  for (const auto& each : heard) {
    CHECK(each == std::vector<std::string>{"no memory"});
  }
}

TEST_CASE("a rank that brings another call is told by all, as compare_calls tells it") {
  for (const int size : {2, 3, 4, 7}) {
    std::vector<std::optional<Failure>> failures(static_cast<std::size_t>(size));
    no_failures(ProcessTrial{}.run(size, [&](ProcessRank& own) {
      std::vector<float> in(16);
      std::vector<float> out(16 * 8);
      CollectiveCall call{.op = Collective::all_gather,
                          .ticket = 1,
                          .bucket = 3,
                          .label = "block.1",
                          .input = in.data(),
                          .output = out.data(),
                          .numel = own.rank == 1 ? 8 : 16};
      if (own.rank == 0) {
        std::this_thread::sleep_for(milliseconds{20});  // late: its call counts all the same
      }
      static_cast<void>(own.launch(call));
      failures[static_cast<std::size_t>(own.rank)] = await_failure(own);
    }));
    const Failure failure = common(failures);
    CHECK(failure.code == ErrorCode::mismatch);
    CHECK(failure.rank == 1);
    CHECK(failure.ticket == 1);
    CHECK(failure.bucket == 3);
    CHECK(failure.text.find("(size): expected all_gather of bucket 3 'block.1' (ticket 1), 16 fp32 "
                            "elements, actual all_gather of bucket 3 'block.1' (ticket 1), 8") !=
          std::string::npos);
  }
}

TEST_CASE("a rank that launches nothing is named by the deadline") {
  for (const int size : {2, 4}) {
    std::vector<std::optional<Failure>> failures(static_cast<std::size_t>(size));
    no_failures(
        ProcessTrial{.collective_timeout = milliseconds{150}}.run(size, [&](ProcessRank& own) {
          REQUIRE(own.barrier(1).ok());
          CHECK_FALSE(own.settle());
          if (own.rank != 1) {
            static_cast<void>(own.barrier(2));
          }
          failures[static_cast<std::size_t>(own.rank)] = await_failure(own);
        }));
    const Failure failure = common(failures);
    CHECK(failure.code == ErrorCode::timeout);
    CHECK(failure.rank == 1);
    CHECK(failure.ticket == 2);
    CHECK(failure.text.find(" ms for rank 1: expected barrier of bucket 3 'block.1' (ticket 2), "
                            "actual: rank 1 has launched nothing after barrier of bucket 3 (ticket "
                            "1)") != std::string::npos);
  }
}

TEST_CASE("who waits for a rank that leaves fails at once, before or after") {
  for (const bool early : {false, true}) {
    CAPTURE(early);
    std::vector<std::optional<Failure>> failures(3);
    std::barrier<> phase(3);
    no_failures(ProcessTrial{}.run(3, [&](ProcessRank& own) {
      REQUIRE(own.barrier(1).ok());
      CHECK_FALSE(own.settle());
      if (own.rank == 2) {
        if (!early) {
          std::this_thread::sleep_for(milliseconds{30});
        }
        own.world->leave(2, "rank 2 has left the world after step 1");
        phase.arrive_and_wait();
        own.world->await_departures();
        failures[2] = own.world->failure();
        return;
      }
      if (early) {
        phase.arrive_and_wait();
      }
      static_cast<void>(own.barrier(2));  // refused, if another rank has failed already
      failures[static_cast<std::size_t>(own.rank)] = await_failure(own);
      if (!early) {
        phase.arrive_and_wait();
      }
    }));
    const Failure failure = common(failures);
    CHECK(failure.code == ErrorCode::peer_failed);
    CHECK(failure.rank == 2);
    CHECK(failure.text ==
          "barrier of bucket 3 'block.1' (ticket 2) waits for rank 2, which has left: rank 2 has "
          "left the world after step 1");
  }
}

TEST_CASE("a rank that leaves harms nobody who needs it no more") {
  std::barrier<> phase(3);
  no_failures(ProcessTrial{}.run(3, [&](ProcessRank& own) {
    REQUIRE(own.barrier(1).ok());
    if (own.rank == 2) {
      own.world->leave(2, "early");
    }
    CHECK_FALSE(own.settle());
    phase.arrive_and_wait();
    const auto pair = own.rank < 2 ? own.world->communicator(own.rank, {0, 1}, 0) : nullptr;
    if (pair) {
      REQUIRE(pair->launch({.op = Collective::barrier, .ticket = 2}, own.stream).ok());
      CHECK_FALSE(own.settle());
      own.world->leave(own.rank, "done");
    }
    own.world->await_departures();
    CHECK_FALSE(own.world->failure());
  }));
}

TEST_CASE("a rank whose process is gone is named, and the collective that waits for it") {
  for (const int size : {2, 3, 4}) {
    ProcessTrial trial;
    std::vector<std::optional<Failure>> failures(static_cast<std::size_t>(size));
    std::latch launched(size - 1);
    no_failures(trial.run(size, [&](ProcessRank& own) {
      REQUIRE(own.barrier(1).ok());
      CHECK_FALSE(own.settle());
      if (own.rank == 1) {
        launched.wait();
        std::this_thread::sleep_for(milliseconds{100});  // their streams come to it
        trial.hub->cut(1);
        own.store->close();  // its will comes true
        CHECK(await_failure(own).text.find(
                  "rank 1 has lost the store of the world, which rank 0 serves: ") == 0);
        return;
      }
      static_cast<void>(own.barrier(2));
      launched.count_down();
      failures[static_cast<std::size_t>(own.rank)] = await_failure(own);
    }));
    failures.erase(failures.begin() + 1);
    const Failure failure = common(failures);
    CHECK(failure.code == ErrorCode::peer_failed);
    CHECK(failure.rank == 1);
    CHECK(failure.ticket == 2);
    CHECK(failure.text ==
          "barrier of bucket 3 'block.1' (ticket 2) cannot end: rank 1 (pid 101 on host7) is "
          "gone: its connection to the store ended, or it gave no sign of life for 30000 ms");
  }
}

TEST_CASE("a cut connection between ranks that live names both ends") {
  ProcessTrial trial;
  std::vector<std::optional<Failure>> failures(2);
  no_failures(trial.run(2, [&](ProcessRank& own) {
    REQUIRE(own.barrier(1).ok());
    CHECK_FALSE(own.settle());
    if (own.rank == 1) {
      trial.hub->cut(1);
    } else {
      REQUIRE(own.barrier(2).ok());
    }
    failures[static_cast<std::size_t>(own.rank)] = await_failure(own);
  }));
  const Failure failure = common(failures);
  CHECK(failure.rank == 1);
  CHECK(failure.text ==
        "rank 0 lost its connection to rank 1 in barrier of bucket 3 'block.1' (ticket 2): was "
        "cut; rank 1 has launched nothing after barrier of bucket 3 (ticket 1)");
}

TEST_CASE("a dropped collective is its rank's failure, with its stream's text") {
  std::vector<std::optional<Failure>> failures(3);
  no_failures(ProcessTrial{}.run(3, [&](ProcessRank& own) {
    if (own.rank == 2) {
      own.stream.run([] { throw std::runtime_error("bad kernel"); });
    }
    static_cast<void>(own.barrier(1));
    failures[static_cast<std::size_t>(own.rank)] = await_failure(own);
  }));
  const Failure failure = common(failures);
  CHECK(failure.text ==
        "rank 2 dropped barrier of bucket 3 'block.1' (ticket 1): stream 'channel 0': bad kernel");
  CHECK(failure.rank == 2);
  CHECK(failure.ticket == 1);
}

TEST_CASE("a decider that does not decide does not keep the others from it") {
  ProcessTrial trial;
  trial.change = [](ProcessWorldOptions& options) {
    if (options.rank != 1) {  // 2 tells its position only when it has launched the same; 0 waits
      options.inquest_limit = std::chrono::hours{1};
    }
  };
  std::vector<std::optional<Failure>> failures(3);
  no_failures(trial.run(3, [&](ProcessRank& own) {
    if (own.rank == 0) {
      std::this_thread::sleep_for(milliseconds{30});  // so it is the first to see the difference
    }
    if (own.rank < 2) {
      static_cast<void>(own.barrier(1 + static_cast<Ticket>(own.rank)));
    }
    failures[static_cast<std::size_t>(own.rank)] = await_failure(own);
  }));
  const Failure failure = common(failures);
  CHECK(failure.code == ErrorCode::mismatch);
  CHECK(failure.rank == 1);
}

TEST_CASE("a store that is lost fails the world on each rank, naming who serves it") {
  std::vector<std::optional<Failure>> failures(2);
  const TimePoint began = Clock::steady().now();
  no_failures(ProcessTrial{}.run(2, [&](ProcessRank& own) {
    REQUIRE(own.barrier(1).ok());
    CHECK_FALSE(own.settle());
    if (own.rank == 1) {
      REQUIRE(own.barrier(2).ok());
      std::this_thread::sleep_for(milliseconds{20});  // its stream comes to it
      own.store->close();
    }
    failures[static_cast<std::size_t>(own.rank)] = await_failure(own);
  }));
  REQUIRE(failures[1]);
  CHECK(failures[1]->text.find("rank 1 has lost the store of the world, which rank 0 serves: ") ==
        0);
  CHECK(failures[1]->text.find("; it waits in barrier of bucket 3 'block.1' (ticket 2)") !=
        std::string::npos);
  CHECK(failures[1]->rank == 0);
  CHECK(failures[1]->ticket == 2);
  CHECK(Clock::steady().now() - began < std::chrono::seconds{30});
}

TEST_CASE("what the ranks have to say about a failure comes to the lowest that lives") {
  std::vector<std::map<int, std::string>> told(3);
  ProcessTrial trial;
  trial.change = [&told](ProcessWorldOptions& options) {
    options.on_accounts = [&told, rank = options.rank](const std::map<int, std::string>& accounts) {
      told[static_cast<std::size_t>(rank)] = accounts;
    };
  };
  no_failures(trial.run(3, [](ProcessRank& own) {
    static_cast<void>(own.world->report({.text = "over"}));
    own.world->share_account("account of " + std::to_string(own.rank));
  }));
  CHECK(told[0] ==
        std::map<int, std::string>{{0, "account of 0"}, {1, "account of 1"}, {2, "account of 2"}});
  CHECK(told[1].empty());
  CHECK(told[2].empty());
}

}  // namespace
}  // namespace troupe::test
