/// Whatever goes wrong in a world of processes: every rank ends with the same text, which names the
/// rank at fault and the collective, in bounded time.
#include "troupe/runtime/launch/free_port.hpp"
#include "troupe/runtime/processes/failure_report.hpp"
#include "troupe/test/support/d4.hpp"
#include "troupe/test/support/joined_ranks.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <latch>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <unistd.h>

namespace troupe::test {
namespace {

using std::chrono::milliseconds;

/// The failure of all ranks, which took far less than a collective's deadline would have.
Failure common(const JoinedOutcome& outcome, TimePoint began) {
  CHECK(Clock::steady().now() - began < std::chrono::seconds{40});
  REQUIRE(outcome.failures.front());
  for (const auto& failure : outcome.failures) {
    REQUIRE(failure);
    CHECK(failure->text == outcome.failures.front()->text);
    CHECK(failure->rank == outcome.failures.front()->rank);
    CHECK(failure->ticket == outcome.failures.front()->ticket);
  }
  return *outcome.failures.front();
}

/// Trains two steps; then rank 1 does `wrong`, the others train on.
Failure train_until(int ranks,
                    const std::function<void(D4Trainer&)>& wrong,
                    milliseconds timeout = std::chrono::seconds{60}) {
  const Model model = d4_model();
  Findings findings;
  const TimePoint began = Clock::steady().now();
  JoinedRanks joined{.timeout = timeout};
  const JoinedOutcome outcome = joined.run(ranks, [&](World& world) {
    D4Trainer trainer(world, findings, model, d4_options());
    trainer.step();
    trainer.step();
    if (world.rank() == 1) {
      wrong(trainer);
    } else {
      trainer.step();
      trainer.step();
    }
  });
  CHECK(findings.text() == "");
  return common(outcome, began);
}

bool contains(const std::string& text, const std::string& part) {
  INFO("in: ", text);
  return text.find(part) != std::string::npos;
}

TEST_CASE("a rank that throws is heard with its text") {
  for (const int ranks : {2, 3, 4}) {
    const Failure failure = train_until(ranks, [](D4Trainer& trainer) {
      const auto micro_batch = trainer.runtime.micro_batch();
      trainer.forward(0);
      const auto use = trainer.runtime.forward(1);
      throw std::runtime_error("loss is not finite");
    });
    CHECK(failure.text == "rank 1 failed at forward of unit 1 'L1': loss is not finite");
    CHECK(failure.rank == 1);
    CHECK(failure.code == ErrorCode::peer_failed);
  }
}

TEST_CASE("a failure's text of any length is heard by all, if need be cut") {
  const std::string longest(std::size_t{3} << 20, 'x');
  const Failure failure =
      train_until(3, [&](D4Trainer&) { throw std::runtime_error("it begins " + longest); });
  CHECK(failure.text.starts_with("rank 1 failed"));
  CHECK(contains(failure.text.substr(0, 100), "it begins xxx"));
  CHECK(failure.rank == 1);
  CHECK(failure.code == ErrorCode::peer_failed);
}

TEST_CASE("what is thrown need be no exception") {
  const Failure failure = train_until(3, [](D4Trainer&) { throw 42; });
  CHECK(failure.text.starts_with("rank 1 failed"));
  CHECK(failure.rank == 1);
}

TEST_CASE("two runtimes at once over a joined world end as one failure") {
  const Model model = d4_model();
  const TimePoint began = Clock::steady().now();
  Findings findings;
  const Failure failure =
      common(JoinedRanks{}.run(3,
                               [&](World& world) {
                                 D4Trainer one(world, findings, model, d4_options());
                                 D4Trainer two(world, findings, model, d4_options());
                                 one.step();
                                 two.step();
                                 if (world.rank() == 2) {
                                   throw std::runtime_error("bad");
                                 }
                                 one.step();
                                 two.step();
                               }),
             began);
  CHECK(failure.rank == 2);
  CHECK(contains(failure.text, "bad"));
}

TEST_CASE("a rank that returns early is named by who waits for it") {
  for (const int ranks : {2, 3, 4}) {
    const Failure failure = train_until(ranks, [](D4Trainer&) {});
    CHECK(contains(failure.text,
                   " waits for rank 1, which has left: rank 1 has left the world after step 2"));
    CHECK(failure.text.starts_with("all_gather of bucket "));
    CHECK(failure.rank == 1);
    CHECK(failure.ticket > 0);
    CHECK(failure.bucket != no_bucket);
    CHECK(failure.code == ErrorCode::peer_failed);
  }
}

TEST_CASE("a rank with another order of units is named, and both calls") {
  for (const int ranks : {2, 3, 4}) {
    const Failure failure = train_until(ranks, [](D4Trainer& trainer) {
      const auto micro_batch = trainer.runtime.micro_batch();
      trainer.forward(0);
      trainer.forward(3);
      trainer.forward(2);
      trainer.forward(1);
      trainer.world.barrier();
    });
    CHECK(failure.code == ErrorCode::mismatch);
    CHECK(failure.rank == 1);
    CHECK(failure.ticket > 0);
    CHECK(contains(failure.text, "rank 1 launched another collective than rank"));
    CHECK(contains(failure.text, ": expected "));
    CHECK(contains(failure.text, ", actual "));
  }
}

/// Rank 1 has a model of its own.
Failure construct_with(int ranks, const Model& model) {
  const Model right = d4_model();
  const TimePoint began = Clock::steady().now();
  return common(JoinedRanks{}.run(ranks,
                                  [&](World& world) {
                                    const Runtime runtime(world, world.rank() == 1 ? model : right,
                                                          {});
                                    world.barrier();
                                  }),
                began);
}

TEST_CASE("a rank with another model, size or dtype is named") {
  Model bf16;
  bf16.add_parameter(bf16.add_unit("L0"), {.name = "w", .shape = {1024}, .dtype = DType::bf16});
  for (const Model& model : {d4_model(3), d4_model(4, 512), bf16}) {
    const Failure failure = construct_with(3, model);
    CHECK(contains(failure.text, "rank 1"));
    CHECK(failure.code == ErrorCode::bad_configuration);
  }
}

TEST_CASE("a rank whose own collective has another size is named, with both") {
  for (const int ranks : {2, 3, 4}) {
    const TimePoint began = Clock::steady().now();
    const Failure failure =
        common(JoinedRanks{}.run(ranks,
                                 [](World& world) {
                                   world.barrier();
                                   std::vector<float> values(world.rank() == 1 ? 7 : 8);
                                   world.all_reduce(values);
                                 }),
               began);
    CHECK(failure.code == ErrorCode::mismatch);
    CHECK(failure.rank == 1);
    CHECK(failure.ticket == 2);
    CHECK(contains(failure.text,
                   " (size): expected all_reduce 'of the trainer' (ticket 2), 8 fp32 elements, "
                   "actual all_reduce 'of the trainer' (ticket 2), 7 fp32 elements"));
  }
}

TEST_CASE("a rank that does nothing is named by the deadline, with its last launch") {
  for (const int ranks : {2, 4}) {
    const Failure failure = train_until(
        ranks,
        [&](D4Trainer& trainer) {
          while (!trainer.world.context().actors().failed()) {
            std::this_thread::sleep_for(milliseconds{5});
          }
        },
        milliseconds{800});
    CHECK(failure.code == ErrorCode::timeout);
    CHECK(failure.rank == 1);
    CHECK(failure.ticket > 0);
    CHECK(contains(failure.text, " ms for rank 1: expected "));
    CHECK(contains(failure.text, ", actual: rank 1 has launched nothing after "));
  }
}

// ---- the store, and who serves it ---------------------------------------------------------------

TEST_CASE("a store that goes is told by every rank, with the collective that waits") {
  auto server = value_or_throw(StoreServer::start({}));
  const std::uint16_t port = server->address().port;
  std::latch trained(3);
  JoinedRanks joined;
  joined.change = [&](JoinOptions& join, WorldOptions&) { join.store_port = port; };
  std::thread ends_it([&] {
    trained.wait();
    server.reset();
  });
  const TimePoint began = Clock::steady().now();
  const JoinedOutcome outcome = joined.run(3, [&](World& world) {
    world.barrier();
    trained.arrive_and_wait();
    if (world.rank() != 1) {
      world.barrier();
    } else {
      while (!world.context().actors().failed()) {
        std::this_thread::sleep_for(milliseconds{5});
      }
    }
  });
  ends_it.join();
  CHECK(Clock::steady().now() - began < std::chrono::seconds{40});
  for (int rank = 0; rank < 3; ++rank) {
    const auto& failure = outcome.failures[static_cast<std::size_t>(rank)];
    REQUIRE(failure);
    CHECK(failure->text.starts_with("rank " + std::to_string(rank) +
                                    " has lost the store of the world: "));
    CHECK((rank == 1 ||
           contains(failure->text, "; it waits in barrier 'of the trainer' (ticket 2)")));
    CHECK(failure->code == ErrorCode::peer_failed);
  }
}

TEST_CASE("rank 0 serves the store to the last: all ranks hear the first failure") {
  for (int round = 0; round < 5; ++round) {
    const launch::FreePort port;
    JoinedRanks joined;
    joined.change = [&](JoinOptions& join, WorldOptions&) {
      join.store_port = port.number();
      join.external_store = false;
    };
    const TimePoint began = Clock::steady().now();
    const JoinedOutcome outcome = joined.run(4, [&](World& world) {
      world.barrier();
      if (world.rank() == round % 4) {
        throw std::runtime_error("bad batch");
      }
      world.barrier();
    });
    const std::string rank = std::to_string(round % 4);
    CHECK(common(outcome, began).text == "rank " + rank + " failed: bad batch");
  }
}

// ---- what is left behind ------------------------------------------------------------------------

TEST_CASE("each rank writes its launches, and the lowest says where they parted") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("troupe-joined-" + std::to_string(::getpid()));
  JoinedRanks joined{.timeout = milliseconds{500}};
  joined.change = [&](JoinOptions& join, WorldOptions&) {
    join.failure_directory = (folder / "made").string();
  };
  const JoinedOutcome outcome = joined.run(3, [&](World& world) {
    world.barrier();
    if (world.rank() != 1) {
      world.barrier();
    }
    while (!world.context().actors().failed()) {
      std::this_thread::sleep_for(milliseconds{5});
    }
  });
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    std::ifstream file(folder / "made" / ("failure-" + std::to_string(rank) + ".json"));
    std::stringstream text;
    text << file.rdbuf();
    const auto dump = launch_dump(text.str());
    REQUIRE(dump);
    CHECK(dump->rank == rank);
    CHECK(dump->failure.text == outcome.failures[0]->text);
    CHECK(dump->launches.size() == (rank == 1 ? 1 : 2));
  }
  std::filesystem::remove_all(folder);
  const auto summaries = [&](int rank) {
    std::vector<std::string> found;
    for (const std::string& text : outcome.logs[static_cast<std::size_t>(rank)]) {
      if (text.starts_with("the world failed: ")) {
        found.push_back(text);
      }
    }
    return found;
  };
  REQUIRE(summaries(0).size() == 1);
  CHECK(summaries(0)[0] ==
        "the world failed: of ranks 0, 1 and 2, ticket 2 barrier 'of the trainer' numel 0 fp32 is "
        "missing on rank 1; rank 1 launched last ticket 1 barrier 'of the trainer' numel 0 fp32 "
        "(done)");
  CHECK(summaries(1).empty());
  CHECK(summaries(2).empty());
}

// ---- SIGTERM ------------------------------------------------------------------------------------

TEST_CASE("SIGTERM is a wish to stop that all ranks hear of, and only while they run") {
  struct sigaction before{};
  struct sigaction after{};
  sigaction(SIGTERM, nullptr, &before);
  std::atomic<int> stopped{0};
  JoinedRanks{}.run(3, [&](World& world) {
    for (int step = 0; step < 5; ++step) {
      world.barrier();
      if (world.rank() == 1 && step == 2) {
        ::kill(::getpid(), SIGTERM);
      }
      world.barrier();
      const bool stop = world.stop_requested();
      CHECK(stop == (step >= 2));
      stopped += stop ? 1 : 0;
    }
  });
  CHECK(stopped == 9);
  sigaction(SIGTERM, nullptr, &after);
  const bool restored = after.sa_handler == before.sa_handler;
  CHECK(restored);
  JoinedRanks{}.run(2, [&](World& world) { CHECK_FALSE(world.stop_requested()); });
}

}  // namespace
}  // namespace troupe::test
