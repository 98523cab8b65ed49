#include "support/draw.hpp"
#include "support/process_ranks.hpp"

#include <doctest/doctest.h>

#include <array>
#include <barrier>
#include <functional>
#include <string>
#include <vector>

namespace troupe::test {
namespace {

using std::chrono::milliseconds;

Result<Rendezvous::Words> meet(ProcessRank& own,
                               std::uint64_t meeting,
                               const std::string& word,
                               Duration limit = patience) {
  const auto waiter = std::make_shared<FutexWaiter>();
  Rendezvous& place = own.world->rendezvous();
  place.arrive(own.rank, meeting, word, waiter);
  static_cast<void>(
      waiter->wait([&] { return place.over(meeting); }, Clock::steady().now() + limit));
  return place.close(meeting, {.code = ErrorCode::timeout,
                               .text = "rank " + std::to_string(own.rank) + " waited",
                               .rank = own.rank});
}

/// The text of the failure that the rank's world has sooner or later.
std::string failure_to_come(ProcessRank& own) {
  const TimePoint deadline = Clock::steady().now() + patience;
  while (!own.world->failure() && Clock::steady().now() < deadline) {
    std::this_thread::sleep_for(milliseconds{1});
  }
  return own.world->failure().value_or(Failure{.text = "none"}).text;
}

TEST_CASE("ranks in processes meet, again and again") {
  for (const int size : {2, 3, 4, 7}) {
    for (const auto& failure : ProcessTrial{}.run(size, [&](ProcessRank& own) {
           for (std::uint64_t meeting = 1; meeting <= 20; ++meeting) {
             const auto words =
                 meet(own, meeting, std::to_string(own.rank) + "." + std::to_string(meeting));
             REQUIRE(words.ok());
             for (int rank = 0; rank < size; ++rank) {
               CHECK(words.value()[static_cast<std::size_t>(rank)] ==
                     std::to_string(rank) + "." + std::to_string(meeting));
             }
           }
         })) {
      CHECK_FALSE(failure);
    }
  }
}

TEST_CASE("who closes a meeting first decides for all, also for who comes later") {
  std::array<std::string, 3> texts;
  ProcessTrial{}.run(3, [&](ProcessRank& own) {
    if (own.rank == 2) {
      std::this_thread::sleep_for(milliseconds{100});
    }
    const auto words = meet(own, 1, "", milliseconds{30});
    REQUIRE_FALSE(words.ok());
    texts[static_cast<std::size_t>(own.rank)] = words.failure().text;
  });
  CHECK((texts[0] == "rank 0 waited" || texts[0] == "rank 1 waited"));
  CHECK(texts[1] == texts[0]);
  CHECK(texts[2] == texts[0]);
}

TEST_CASE("a rank that leaves, or dies, is not waited for") {
  for (const bool dies : {false, true}) {
    CAPTURE(dies);
    ProcessTrial{}.run(3, [&](ProcessRank& own) {
      if (own.rank == 1) {
        if (dies) {
          own.store->close();
        } else {
          own.world->rendezvous().leave(1, "rank 1 has left");
        }
        return;
      }
      const auto waiter = std::make_shared<FutexWaiter>();
      Rendezvous& place = own.world->rendezvous();
      place.arrive(own.rank, 1, "", waiter);
      CHECK(waiter->wait([&] { return place.over(1); }, Clock::steady().now() + patience));
      const auto absent = place.absent(1);
      REQUIRE(absent.left.contains(1));
      CHECK(absent.left.at(1).find(dies ? "rank 1 (pid 101 on host7) is gone"
                                        : "rank 1 has left") == 0);
    });
  }
}

TEST_CASE("updates of other ranks are heard of by who asks") {
  ProcessTrial{}.run(3, [](ProcessRank& own) {
    Rendezvous& place = own.world->rendezvous();
    const auto all_have_made = [&](std::uint64_t count) {
      const TimePoint deadline = Clock::steady().now() + patience;
      while (!place.all_have_made(count) && Clock::steady().now() < deadline) {
        std::this_thread::sleep_for(milliseconds{1});
      }
      return place.all_have_made(count);
    };
    for (std::uint64_t count = 1; count <= 5; ++count) {
      if (own.rank == 1) {
        std::this_thread::sleep_for(milliseconds{10});
      }
      place.note_updates(own.rank, count);
    }
    CHECK(all_have_made(5));
    CHECK_FALSE(place.all_have_made(6));
    REQUIRE(meet(own, 1, "").ok());
    if (own.rank == 2) {
      place.leave(2, "gone");
      return;
    }
    place.note_updates(own.rank, 6);
    CHECK(all_have_made(6));
    REQUIRE(own.world->rendezvous().absent(2).ranks.size() == 3);
  });
}

TEST_CASE("after a failure the world goes on in a new epoch, and fails there anew") {
  for (const int size : {1, 2, 3, 4, 7}) {
    std::vector<std::vector<std::string>> heard(static_cast<std::size_t>(size));
    ProcessTrial trial;
    trial.change = [&heard](ProcessWorldOptions& options) {
      auto& own = heard[static_cast<std::size_t>(options.rank)];
      options.on_failure = [&own](std::uint64_t, const Failure& failure) {
        own.push_back(failure.text);
      };
    };
    for (const auto& failure : trial.run(size, [&](ProcessRank& own) {
           for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
             REQUIRE(own.barrier(1).ok());
             CHECK_FALSE(own.settle());
             const std::string text = "failure of epoch " + std::to_string(epoch);
             CHECK(own.world->report({.text = text}).text == text);
             CHECK_FALSE(own.barrier(2).ok());
             REQUIRE(meet(own, 2 * epoch - 1, "").ok());
             own.world->renew(epoch + 1);
             own.communicator.reset();
             own.connect();
             CHECK_FALSE(own.world->failure());
             REQUIRE(meet(own, 2 * epoch, "").ok());
           }
           own.world->end({.text = "for good"});
           CHECK(own.world->failure()->text == "for good");
         })) {
      CHECK_FALSE(failure);
    }
    for (const auto& each : heard) {
      REQUIRE(each.size() >= 3);  // and of the end, where another rank has told it first
      CHECK(each[0] == "failure of epoch 1");
      CHECK(each[2] == "failure of epoch 3");
    }
  }
}

TEST_CASE("a failure in an epoch that this rank has not come to yet is not lost") {
  ProcessTrial{}.run(2, [](ProcessRank& own) {
    static_cast<void>(own.world->report({.text = "first"}));
    REQUIRE(meet(own, 1, "").ok());
    if (own.rank == 0) {
      own.world->renew(2);
      static_cast<void>(own.world->report({.text = "second"}));
      REQUIRE(meet(own, 2, "").ok());
      return;
    }
    REQUIRE(meet(own, 2, "").ok());  // behind the failure in the log
    CHECK(own.world->failure()->text == "first");
    own.world->renew(2);
    CHECK(failure_to_come(own) == "second");
  });
}

/// Three ranks that have given up their first epoch, in which they launched four barriers; they
/// have passed one in the second, in which rank 1 does `wrong` and the others come to the next one.
std::string failure_in_second_epoch(const std::function<void(ProcessRank&)>& wrong) {
  std::array<std::string, 3> texts;
  ProcessTrial trial;
  trial.collective_timeout = std::chrono::seconds{5};
  trial.run(3, [&](ProcessRank& own) {
    for (Ticket ticket = 1; ticket <= 3; ++ticket) {
      REQUIRE(own.barrier(ticket).ok());
    }
    CHECK_FALSE(own.settle());
    static_cast<void>(own.barrier(own.rank == 0 ? 9 : 4));
    REQUIRE(failure_to_come(own).starts_with("rank 0 launched another collective than"));
    static_cast<void>(own.settle());
    while (!own.stream.idle()) {
      std::this_thread::yield();
    }
    REQUIRE(own.stream.recover().ok());
    REQUIRE(meet(own, 1, "").ok());
    own.world->renew(2);
    own.communicator.reset();
    own.connect();
    REQUIRE(meet(own, 2, "").ok());
    REQUIRE(own.barrier(1).ok());
    CHECK_FALSE(own.settle());
    if (own.rank == 1) {
      wrong(own);
    } else {
      static_cast<void>(own.barrier(2));
    }
    texts[static_cast<std::size_t>(own.rank)] = failure_to_come(own);
    static_cast<void>(own.settle());
  });
  CHECK(texts[1] == texts[0]);
  CHECK(texts[2] == texts[0]);
  return texts[0];
}

TEST_CASE("in a later epoch, too, it is found out what goes wrong") {
  CHECK(
      failure_in_second_epoch([](ProcessRank& own) { static_cast<void>(own.barrier(3)); }) ==
      "rank 1 launched another collective than ranks 0 and 2 (ticket): expected barrier of bucket "
      "3 'block.1' (ticket 2), actual barrier of bucket 3 'block.1' (ticket 3)");
}

TEST_CASE("what a rank has launched in an earlier epoch does not count when it leaves") {
  CHECK(
      failure_in_second_epoch([](ProcessRank& own) { own.world->leave(1, "rank 1 is done"); }) ==
      "barrier of bucket 3 'block.1' (ticket 2) waits for rank 1, which has left: rank 1 is done");
}

// ---- whatever the order -------------------------------------------------------------------------

/// What one rank says, drawn from a seed.
void say_something(ProcessRank& own, Random& random) {
  const std::string who = "rank " + std::to_string(own.rank);
  switch (random.below(5)) {
    case 0:
      own.world->abort({.text = who + " aborts", .rank = own.rank});
      break;
    case 1:
      static_cast<void>(own.world->report({.text = who + " reports", .rank = own.rank}));
      break;
    case 2:
      own.world->end({.text = who + " ends", .rank = own.rank});
      break;
    case 3:
      static_cast<void>(own.barrier(1));
      break;
    default:
      std::this_thread::yield();
  }
}

TEST_CASE("whatever the ranks say, in any order, they come to the same conclusions") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const int size = static_cast<int>(2 + seed % 4);
    std::vector<std::string> failures(static_cast<std::size_t>(size));
    std::vector<std::string> meetings(static_cast<std::size_t>(size));
    ProcessTrial trial;
    trial.collective_timeout = milliseconds{50};
    trial.change = [](ProcessWorldOptions& options) {
      options.inquest_limit = milliseconds{50};
      options.timeout = milliseconds{100};
    };
    std::barrier<> joined(size);
    trial.run(size, [&](ProcessRank& own) {
      joined.arrive_and_wait();
      Random random(seed * 100 + static_cast<std::uint64_t>(own.rank));
      for (std::uint64_t count = random.below(4); count > 0; --count) {
        say_something(own, random);
      }
      const auto words = meet(own, 1, std::to_string(own.rank), milliseconds{random.below(30)});
      std::string outcome = words.ok() ? "" : words.failure().text;
      for (const std::string& word : words.ok() ? words.value() : Rendezvous::Words{}) {
        outcome += word + " ";
      }
      meetings[static_cast<std::size_t>(own.rank)] = outcome;
      own.world->leave(own.rank, "left");
      own.world->await_departures();
      static_cast<void>(own.settle());
      // Its last word. When those of all have been heard, so has all that was said before.
      Rendezvous& place = own.world->rendezvous();
      place.leave(own.rank, "silent");
      const TimePoint deadline = Clock::steady().now() + patience;
      while (place.absent(99).left.size() < static_cast<std::size_t>(size) &&
             Clock::steady().now() < deadline) {
        std::this_thread::sleep_for(milliseconds{1});
      }
      const auto failure = own.world->failure();
      failures[static_cast<std::size_t>(own.rank)] = failure ? failure->text : "none";
    });
    for (std::size_t rank = 1; rank < failures.size(); ++rank) {
      CAPTURE(rank);
      CHECK(failures[rank] == failures[0]);
      CHECK(meetings[rank] == meetings[0]);
    }
  }
}

}  // namespace
}  // namespace troupe::test
