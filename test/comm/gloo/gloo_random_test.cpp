#include "gloo_ranks.hpp"
#include "troupe/test/comm/support/collectives_contract.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

/// One channel of several as a world for trials.
class ChannelView final : public WorldFixture {
 public:
  ChannelView(GlooRanks& ranks, int channel) : ranks_(ranks), channel_(channel) {}

  int size() const override { return ranks_.size(); }
  Device& device(int rank) override { return ranks_.device(rank); }
  Stream& stream(int rank) override { return ranks_.stream(rank, channel_); }
  Communicator& communicator(int rank) override { return ranks_.communicator(rank, channel_); }
  std::vector<std::optional<Failure>> settle() override { return ranks_.settle(channel_); }

 private:
  GlooRanks& ranks_;
  const int channel_;
};

Spec random_spec(Random& random, int size) {
  Spec spec;
  spec.op = all_collectives[random.below(std::size(all_collectives))];
  spec.dtype = one_in(random, 2) ? DType::f32 : DType::bf16;
  spec.numel = static_cast<std::int64_t>(random.below(one_in(random, 8) ? 50000 : 300));
  spec.root = is_rooted(spec.op) ? static_cast<int>(random.below(static_cast<unsigned>(size))) : 0;
  spec.in_place = one_in(random, 2);
  spec.values = static_cast<Values>(random.below(3));
  return spec;
}

/// Values are checked against sums in rank order, bit for bit: what `LocalWorld` gives too.
TEST_CASE("random sequences of collectives on two channels give the right values") {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const int size = world_sizes[random.below(std::size(world_sizes))];
    constexpr int channel_count = 2;
    GlooOptions options;
    if (one_in(random, 2)) {
      options.segment_bytes = static_cast<std::int64_t>(64 + random.below(4096));
      options.staging_bytes = static_cast<std::int64_t>(random.below(65536));
    }
    GlooRanks ranks(size, options, channel_count);
    ChannelView channels[] = {{ranks, 0}, {ranks, 1}};
    std::vector<std::unique_ptr<Trial>> trials;
    std::vector<ChannelView*> of_trial;
    for (Ticket ticket = 1; ticket <= 12; ++ticket) {
      ChannelView& channel = channels[random.below(channel_count)];
      trials.push_back(
          std::make_unique<Trial>(channel, random_spec(random, size), ticket, seed * 100 + ticket));
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

TEST_CASE("payloads of many segments give the right values") {
  for (const int size : {2, 3}) {
    GlooThreads world(size);
    std::vector<Spec> specs;
    for (const Collective op : all_collectives) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        specs.push_back({op, dtype, op == Collective::barrier ? 0 : 400'001, 0, dtype == DType::f32,
                         Values::reals});
      }
    }
    run_trials(world, specs, 700);
  }
}

}  // namespace
}  // namespace troupe::test
