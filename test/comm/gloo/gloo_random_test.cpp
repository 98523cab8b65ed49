#include "gloo_ranks.hpp"
#include "troupe/test/comm/support/random_trials.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <span>
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

TEST_CASE("random sequences of collectives on two channels give the right values") {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const int size = world_sizes[random.below(std::size(world_sizes))];
    GlooOptions options;
    if (one_in(random, 2)) {
      options.segment_bytes = static_cast<std::int64_t>(64 + random.below(4096));
      options.staging_bytes = static_cast<std::int64_t>(random.below(65536));
    }
    GlooRanks ranks(size, options, 2);
    ChannelView channels[] = {{ranks, 0}, {ranks, 1}};
    run_random_trials(random, seed, std::span<ChannelView>(channels), 50'000);
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
