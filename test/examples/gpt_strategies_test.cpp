// The formulas of docs/strategies.md against what the demo's report says, byte for byte.
#include "gpt_fixture.hpp"
#include <troupe/core/bucket_plan.hpp>
#include <troupe/examples/gpt/sharded.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

namespace gpt::test {

namespace {

using troupe::Collective;
using troupe::Report;
using troupe::Strategy;

/// As many blocks as the demo has, in a third of their width. Parameters are multiples of 16, so
/// that only the ends of buckets are padded.
constexpr Config config{.layers = 6, .width = 48, .heads = 2, .sequence = 8, .batch = 1};
constexpr int64_t fp32 = 4;
constexpr int64_t states = 2;  // of AdamW, for each parameter

std::string text() {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "the " + std::to_string(i) + "th line of the text; ";
  }
  return text;
}

Options options_of(Strategy strategy, int ranks) {
  Options options;
  options.config = config;
  options.ranks = ranks;
  options.steps = 3;
  options.strategy = strategy;
  return options;
}

std::vector<Report> train(const Options& options) {
  const TemporaryFolder folder("strategies");
  const Corpus corpus =
      std::get<Corpus>(Corpus::load(folder.write("text", text()), config.sequence));
  return train_sharded(options, corpus, {}, {.timeout = std::chrono::seconds{60}}).reports;
}

/// What the formulas are of, with everything padded: a bucket to a multiple of 16 elements for each
/// rank of a copy, or of 16 where it is not cut.
struct Sizes {
  explicit Sizes(const Options& options)
      : ranks(options.ranks / options.replicas),
        micro_batches(options.micro_batches),
        parameter(options.bf16_parameters ? 2 : fp32) {
    const auto plan = troupe::plan_buckets(sharded_model(config, false), options.strategy);
    const int64_t multiple = options.strategy == Strategy::owner_broadcast ? 16 : 16 * ranks;
    for (const troupe::Bucket& bucket : plan.buckets) {
      numels.push_back((bucket.numel + multiple - 1) / multiple * multiple);
    }
    total = std::accumulate(numels.begin(), numels.end(), int64_t{0});
    largest = *std::ranges::max_element(numels);
    buckets = static_cast<int64_t>(numels.size());
  }

  int64_t ranks;  // of one copy
  int64_t micro_batches;
  int64_t parameter;            // bytes, gathered
  std::vector<int64_t> numels;  // of the buckets
  int64_t total = 0, largest = 0, buckets = 0;
};

/// What a step hands to each kind of collective, and how many there are.
struct Traffic {
  std::array<int64_t, troupe::collective_count> bytes{};
  std::array<int64_t, troupe::collective_count> count{};

  Traffic& add(Collective op, int64_t times, int64_t bytes_in_all) {
    bytes[static_cast<size_t>(op)] += bytes_in_all;
    count[static_cast<size_t>(op)] += times;
    return *this;
  }
};

void check(const Report& report, const Traffic& expected) {
  for (size_t op = 0; op < troupe::collective_count; ++op) {
    CAPTURE(std::string(to_string(static_cast<Collective>(op))));
    CHECK(static_cast<int64_t>(report.collectives_last_step[op]) == expected.count[op]);
    CHECK(static_cast<int64_t>(report.bytes_sent_last_step[op]) == expected.bytes[op]);
  }
}

/// The trainer's own: the losses of a step.
Traffic losses(const Sizes& sizes) {
  return Traffic{}.add(Collective::all_gather, 1, fp32 * sizes.micro_batches);
}

/// Rank 0's record of a step for all: each bucket once as gathered and once as reduced.
void add_order(Traffic& traffic, const Report& report, const Sizes& sizes) {
  if (report.world_size > 1) {
    traffic.add(Collective::broadcast, 1, report.rank == 0 ? 2 * sizes.buckets * 4 : 0);
  }
}

/// Units are the buckets of full_shard: embed, six blocks, head. Embed and head are less than half
/// a block, so they have slots of their own, two of the larger one's size.
int64_t slots_of_units(const Sizes& sizes, int64_t block_slots, int64_t element) {
  const int64_t small = std::max(sizes.numels.front(), sizes.numels.back());
  const auto slot = [element](int64_t numel) { return (numel * element + 255) / 256 * 256; };
  return block_slots * slot(sizes.largest) + 2 * slot(small);
}

int64_t own_slots(const Sizes& sizes, int64_t element) {
  int64_t bytes = 0;
  for (const int64_t numel : sizes.numels) {
    bytes += (numel * element + 255) / 256 * 256;
  }
  return bytes;
}

}  // namespace

TEST_CASE("full_shard holds shards and slots, and gathers three blocks a second time") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int64_t micro_batches : {1, 3}) {
      for (const bool bf16 : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(micro_batches);
        CAPTURE(bf16);
        Options options = options_of(Strategy::full_shard, ranks);
        options.micro_batches = micro_batches;
        options.bf16_parameters = bf16;
        const Sizes sizes(options);
        // With three slots for six blocks, three of them are still held where the pass turns.
        Traffic traffic = losses(sizes);
        const int64_t again = 3 * (2 * micro_batches - 1);
        traffic
            .add(Collective::all_gather, 8 + again,
                 sizes.parameter * (sizes.total + again * sizes.largest) / ranks)
            .add(Collective::reduce_scatter, 8 * micro_batches, micro_batches * fp32 * sizes.total);
        for (const Report& report : train(options)) {
          CHECK(report.memory.main_weights == fp32 * sizes.total / ranks);
          CHECK(report.memory.main_gradients == fp32 * sizes.total / ranks);
          CHECK(report.memory.optimizer == states * fp32 * sizes.total / ranks);
          CHECK(report.memory.parameter_slots == slots_of_units(sizes, 3, sizes.parameter));
          CHECK(report.memory.gradient_slots == slots_of_units(sizes, 2, fp32));
          CHECK(report.memory.kept_parameters == 0);
          check(report, traffic);
        }
      }
    }
  }
}

TEST_CASE("full_shard that keeps its parameters holds them all, and gathers once") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    Options options = options_of(Strategy::full_shard, ranks);
    options.micro_batches = 3;
    options.keep_gathered = true;
    const Sizes sizes(options);
    Traffic traffic = losses(sizes);
    traffic.add(Collective::all_gather, 8, fp32 * sizes.total / ranks)
        .add(Collective::reduce_scatter, 3 * 8, 3 * fp32 * sizes.total);
    for (const Report& report : train(options)) {
      CHECK(report.memory.main_weights == fp32 * sizes.total / ranks);
      CHECK(report.memory.parameter_slots == own_slots(sizes, fp32));
      CHECK(report.memory.gradient_slots == slots_of_units(sizes, 2, fp32));
      check(report, traffic);
    }
  }
}

TEST_CASE("full_shard that gathers again among two keeps half of the parameters") {
  Options options = options_of(Strategy::full_shard, 4);
  options.regather = 2;
  const Sizes sizes(options);
  Traffic traffic = losses(sizes);
  traffic.add(Collective::all_gather, 8 + 3, fp32 * (sizes.total / 4 + 3 * sizes.largest / 2))
      .add(Collective::reduce_scatter, 8, fp32 * sizes.total);
  for (const Report& report : train(options)) {
    CHECK(report.memory.main_weights == fp32 * sizes.total / 4);
    CHECK(report.memory.kept_parameters == fp32 * sizes.total / 2);
    CHECK(report.memory.parameter_slots == slots_of_units(sizes, 3, fp32));
    check(report, traffic);
  }
}

TEST_CASE("two replicas hold shards of half the ranks, and add an all_reduce of the shards") {
  for (const bool at_step_end : {false, true}) {
    CAPTURE(at_step_end);
    Options options = options_of(Strategy::full_shard, 4);
    options.micro_batches = 3;
    options.replicas = 2;
    options.sum_at_step_end = at_step_end;
    const Sizes sizes(options);
    const int64_t sums = at_step_end ? 1 : 3;
    Traffic traffic = losses(sizes);
    traffic.add(Collective::all_gather, 8 + 15, fp32 * (sizes.total + 15 * sizes.largest) / 2)
        .add(Collective::reduce_scatter, 3 * 8, 3 * fp32 * sizes.total)
        .add(Collective::all_reduce, sums * 8, sums * fp32 * sizes.total / 2);
    for (const Report& report : train(options)) {
      CHECK(report.memory.main_weights == fp32 * sizes.total / 2);
      CHECK(report.memory.optimizer == states * fp32 * sizes.total / 2);
      check(report, traffic);
    }
  }
}

TEST_CASE("sharded_optimizer holds all parameters and gathers each bucket once a step") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const bool keep_gradients : {false, true}) {
      for (const bool bf16 : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(keep_gradients);
        CAPTURE(bf16);
        Options options = options_of(Strategy::sharded_optimizer, ranks);
        options.micro_batches = 3;
        options.keep_gradients = keep_gradients;
        options.bf16_parameters = bf16;
        const Sizes sizes(options);
        Traffic common = losses(sizes);
        common.add(Collective::all_gather, sizes.buckets, sizes.parameter * sizes.total / ranks)
            .add(Collective::reduce_scatter, 3 * sizes.buckets, 3 * fp32 * sizes.total);
        for (const Report& report : train(options)) {
          CHECK(report.memory.main_weights == (bf16 ? fp32 * sizes.total / ranks : 0));
          CHECK(report.memory.main_gradients == fp32 * sizes.total / ranks);
          CHECK(report.memory.optimizer == states * fp32 * sizes.total / ranks);
          CHECK(report.memory.parameter_slots == own_slots(sizes, sizes.parameter));
          if (keep_gradients) {
            CHECK(report.memory.gradient_slots == own_slots(sizes, fp32));
          } else {
            CHECK(report.memory.gradient_slots < own_slots(sizes, fp32));
          }
          Traffic traffic = common;
          add_order(traffic, report, sizes);
          check(report, traffic);
        }
      }
    }
  }
}

TEST_CASE("owner_broadcast holds all parameters, and the rest of those that it owns") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const bool bf16 : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(bf16);
      Options options = options_of(Strategy::owner_broadcast, ranks);
      options.micro_batches = 3;
      options.bf16_parameters = bf16;
      const Sizes sizes(options);
      CHECK(sizes.buckets == 2 + 6 * 12 + 3);  // each parameter by itself
      int64_t owned_by_all = 0;
      int64_t least = sizes.total;
      int64_t most = 0;
      for (const Report& report : train(options)) {
        const int64_t owned = report.memory.main_gradients / fp32;
        owned_by_all += owned;
        least = std::min(least, owned);
        most = std::max(most, owned);
        CHECK(report.memory.main_weights == (bf16 ? fp32 * owned : 0));
        CHECK(report.memory.optimizer == states * fp32 * owned);
        CHECK(report.memory.parameter_slots == own_slots(sizes, sizes.parameter));
        Traffic traffic = losses(sizes);
        traffic.add(Collective::broadcast, sizes.buckets, sizes.parameter * owned)
            .add(Collective::reduce, 3 * sizes.buckets, 3 * fp32 * sizes.total);
        add_order(traffic, report, sizes);
        check(report, traffic);
      }
      CHECK(owned_by_all == sizes.total);
      CHECK(most - least <= sizes.largest);
    }
  }
}

}  // namespace gpt::test
