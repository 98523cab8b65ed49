#include "support/local_ranks.hpp"
#include "support/random_trials.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

/// Half of the seeds let the last to arrive move small payloads, the others never.
std::int64_t one_mover_bytes_max(std::uint64_t seed) {
  return seed % 2 == 0 ? LocalWorld::default_one_mover_bytes_max : each_its_part;
}

/// One channel of several as a world for trials.
class ChannelView final : public WorldFixture {
 public:
  ChannelView(LocalRanks& ranks, int channel) : ranks_(ranks), channel_(channel) {}

  int size() const override { return ranks_.size(); }
  Device& device(int rank) override { return ranks_.device(rank); }
  Stream& stream(int rank) override { return ranks_.stream(rank, channel_); }
  Communicator& communicator(int rank) override { return ranks_.communicator(rank, channel_); }
  std::vector<std::optional<Failure>> settle() override {
    for (HostStream* each : ranks_.streams(channel_)) {
      test::settle(*each);
    }
    return ranks_.failures(channel_);
  }

 private:
  LocalRanks& ranks_;
  const int channel_;
};

TEST_CASE("random sequences of collectives on threads with random delays give the right values") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const int size = world_sizes[random.below(std::size(world_sizes))];
    LocalRanks ranks(size, StreamWorkers::threads, patience, Clock::steady(), 2,
                     one_mover_bytes_max(seed));
    ChannelView channels[] = {{ranks, 0}, {ranks, 1}};
    run_random_trials(random, seed, std::span<ChannelView>(channels), 5000);
  }
}

TEST_CASE("three ranks run on one thread in any order of steps, with one result") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    LocalManual world(3, seed, one_mover_bytes_max(seed));
    Random random(seed);
    std::vector<Spec> specs;
    for (int i = 0; i < 10; ++i) {
      specs.push_back(random_spec(random, 3));
    }
    run_trials(world, specs, seed);
  }
}

TEST_CASE("whoever comes first or last, a disagreement has one text") {
  std::vector<int> order{0, 1, 2, 3};
  std::optional<std::string> text;
  do {
    LocalRanks ranks(4, StreamWorkers::manual);
    for (const int rank : order) {
      // Ranks 2 and 3 take another branch: two against two.
      const CollectiveCall call{.op = Collective::barrier,
                                .ticket = 5,
                                .bucket = rank < 2 ? 1U : 2U,
                                .label = rank < 2 ? "block.1" : "block.2"};
      REQUIRE(ranks.communicator(rank).launch(call, ranks.stream(rank)).ok());
      ranks.stream(rank).step();
    }
    step_all(ranks.streams());
    for (const auto& failure : ranks.failures()) {
      REQUIRE(failure.has_value());
      text = text ? text : failure->text;
      CHECK(failure->text == *text);
    }
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(*text ==
        "rank 2 launched another collective than ranks 0 and 1 (bucket): expected barrier of "
        "bucket 1 'block.1' (ticket 5), actual barrier of bucket 2 'block.2' (ticket 5)");
}

TEST_CASE("failures on many threads at once leave one text for all ranks") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    constexpr int size = 4;
    LocalRanks ranks(size, StreamWorkers::threads);
    const auto odd = static_cast<int>(random.below(size));
    std::vector<std::thread> trainers;
    for (int rank = 0; rank < size; ++rank) {
      trainers.emplace_back([&ranks, rank, odd, delay = random.below(50), what = seed % 3] {
        for (Ticket ticket = 1; ticket <= 20; ++ticket) {
          CollectiveCall call{.op = Collective::barrier, .ticket = ticket};
          if (rank == odd && ticket == 10) {
            std::this_thread::sleep_for(std::chrono::microseconds(delay));
            if (what == 0) {
              ranks.world.leave(rank, "rank has returned");
              return;
            }
            if (what == 1) {
              ranks.communicator(rank).abort(
                  {.code = ErrorCode::peer_failed, .text = "boom", .rank = rank});
            }
            call.bucket = 1;
          }
          if (!ranks.communicator(rank).launch(call, ranks.stream(rank)).ok()) {
            return;
          }
        }
      });
    }
    for (std::thread& trainer : trainers) {
      trainer.join();
    }
    for (int rank = 0; rank < size; ++rank) {
      const auto failure = settle(ranks.stream(rank)).failure;
      if (failure) {
        REQUIRE(failure == ranks.world.first_failure().get());
      }
    }
    REQUIRE(ranks.world.first_failure().get().has_value());
  }
}

}  // namespace
}  // namespace troupe::test
