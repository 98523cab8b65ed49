#include "support/collectives_contract.hpp"
#include "support/local_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
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

Spec random_spec(Random& random, int size) {
  Spec spec;
  spec.op = all_collectives[random.below(std::size(all_collectives))];
  spec.dtype = one_in(random, 2) ? DType::f32 : DType::bf16;
  spec.numel = static_cast<std::int64_t>(random.below(one_in(random, 8) ? 5000 : 100));
  spec.root = is_rooted(spec.op) ? static_cast<int>(random.below(static_cast<unsigned>(size))) : 0;
  spec.in_place = one_in(random, 2);
  spec.values = static_cast<Values>(random.below(3));
  return spec;
}

TEST_CASE("random sequences of collectives on threads with random delays give the right values") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const int size = world_sizes[random.below(std::size(world_sizes))];
    constexpr int channel_count = 2;
    LocalRanks ranks(size, StreamWorkers::threads, patience, Clock::steady(), channel_count,
                     one_mover_bytes_max(seed));
    ChannelView channels[] = {{ranks, 0}, {ranks, 1}};
    std::vector<std::unique_ptr<Trial>> trials;
    std::vector<ChannelView*> of_trial;
    for (Ticket ticket = 1; ticket <= 12; ++ticket) {
      ChannelView& channel = channels[random.below(channel_count)];
      const Spec spec = random_spec(random, size);
      trials.push_back(std::make_unique<Trial>(channel, spec, ticket, seed * 100 + ticket));
      of_trial.push_back(&channel);
    }
    // Each rank launches from a thread of its own, and its streams are held up now and then.
    std::vector<std::thread> trainers;
    std::vector<std::uint64_t> refused(static_cast<std::size_t>(size), 0);
    for (int rank = 0; rank < size; ++rank) {
      trainers.emplace_back([&trials, &of_trial, &refused, rank, delays = random.next()] {
        Random delay(delays);
        for (std::size_t i = 0; i < trials.size(); ++i) {
          if (one_in(delay, 3)) {
            const auto pause = std::chrono::microseconds(delay.below(200));
            static_cast<HostStream&>(of_trial[i]->stream(rank)).run([pause] {
              std::this_thread::sleep_for(pause);
            });
          }
          refused[static_cast<std::size_t>(rank)] += trials[i]->launch(rank).ok() ? 0U : 1U;
          if (one_in(delay, 4)) {
            std::this_thread::sleep_for(std::chrono::microseconds(delay.below(100)));
          }
        }
      });
    }
    for (std::thread& trainer : trainers) {
      trainer.join();
    }
    REQUIRE(refused == std::vector<std::uint64_t>(refused.size(), 0));
    for (ChannelView& channel : channels) {
      for (const auto& failure : channel.settle()) {
        REQUIRE_MESSAGE(!failure, failure->text);
      }
    }
    for (const auto& trial : trials) {
      trial->check();
    }
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
