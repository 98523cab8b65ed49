/// Under every strategy, what a step launches, sends and holds is what the formulas say, on every
/// rank and in every step.
#include "troupe/test/support/ranks.hpp"
#include "troupe/test/support/toy_trainer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>

namespace troupe::test {
namespace {

constexpr std::int64_t units = 8;
constexpr std::int64_t unit_numel = 64 + 32;
constexpr std::int64_t alignment = 16;
constexpr std::int64_t fp32 = 4;

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// One rank's numbers. Collectives and bytes sent are of one step.
struct Numbers {
  std::array<std::int64_t, collective_count> launches{};
  std::array<std::int64_t, collective_count> sent{};
  MemoryReport memory;
  std::int64_t unsharded_peak = 0;
  std::int64_t gradient_peak = 0;

  void collective(Collective op, std::int64_t count, std::int64_t bytes_each) {
    launches[static_cast<std::size_t>(op)] += count;
    sent[static_cast<std::size_t>(op)] += count * bytes_each;
  }
};

struct Place {
  std::int64_t ranks, rank, micro_batches;
};

struct Row {
  const char* name;
  Options options;
  DType dtype = DType::f32;
  int ranks_multiple = 1;
};

std::vector<Row> rows() {
  constexpr Strategy owner = Strategy::owner_broadcast;
  constexpr Strategy sliced = Strategy::sharded_optimizer;
  constexpr std::int64_t unit_bytes = unit_numel * fp32;
  return {
      {"owner_broadcast", {.strategy = owner, .gradient_slots = 4}},
      {"owner_broadcast, fused",
       {.strategy = owner, .gradient_slots = 2, .bucket_bytes = unit_bytes}},
      {"sharded_optimizer, gradients freed",
       {.strategy = sliced, .gradient_slots = 2, .bucket_bytes = unit_bytes}},
      {"sharded_optimizer, gradients kept",
       {.strategy = sliced, .free_full_gradients = false, .bucket_bytes = unit_bytes}},
      {"sharded_optimizer, bf16",
       {.strategy = sliced, .gradient_slots = 2, .bucket_bytes = unit_bytes / 2},
       DType::bf16},
      {"sharded_optimizer, two replicas",
       {.strategy = sliced,
        .mesh = {.replicate = 2},
        .gradient_slots = 2,
        .bucket_bytes = unit_bytes},
       DType::f32,
       2},
      {"full_shard", {.slots = 2, .gradient_slots = 2}},
      {"full_shard, bf16", {.slots = 2, .gradient_slots = 2}, DType::bf16},
      {"full_shard, gradients kept", {.free_full_gradients = false, .slots = 2}},
      {"full_shard, not resharded", {.reshard_after_forward = false, .gradient_slots = 2}},
      {"full_shard, one unit kept", {.keep_gathered = {"u3"}, .slots = 2, .gradient_slots = 2}},
      {"full_shard, gathered again among 2",
       {.regather_group_size = 2, .slots = 2, .gradient_slots = 2},
       DType::f32,
       2},
      {"full_shard, two replicas",
       {.mesh = {.replicate = 2}, .slots = 2, .gradient_slots = 2},
       DType::f32,
       2},
      {"full_shard, two replicas summed at step end",
       {.mesh = {.replicate = 2},
        .slots = 2,
        .gradient_slots = 2,
        .sum_replicas_at_step_end = true},
       DType::f32,
       2},
  };
}

/// What both agreed strategies add: rank 0's order of gathers and of reduces.
void add_order(Numbers& numbers, const Place& world, std::int64_t buckets) {
  if (world.ranks > 1) {
    numbers.collective(Collective::broadcast, 1, world.rank == 0 ? 2 * buckets * 4 : 0);
  }
}

/// Elements that each rank owns of eight buckets of 64 and eight of 32, dealt by size.
std::int64_t owned_numel(const Place& world) {
  const std::map<std::int64_t, std::vector<std::int64_t>> dealt{
      {1, {768}},
      {2, {384, 384}},
      {3, {256, 256, 256}},
      {4, {192, 192, 192, 192}},
      {7, {128, 128, 128, 96, 96, 96, 96}},
  };
  return dealt.at(world.ranks)[static_cast<std::size_t>(world.rank)];
}

Numbers owner_numbers(const Options& options, const Place& world) {
  const bool fused = options.bucket_bytes > 0;
  const std::int64_t buckets = fused ? units : 2 * units;
  const std::int64_t slot = fused ? 512 : 256;
  const std::int64_t own =
      fused ? (units / world.ranks + (world.rank < units % world.ranks)) * unit_numel
            : owned_numel(world);
  Numbers numbers;
  numbers.launches[static_cast<std::size_t>(Collective::broadcast)] = buckets;
  numbers.sent[static_cast<std::size_t>(Collective::broadcast)] = own * fp32;
  numbers.launches[static_cast<std::size_t>(Collective::reduce)] = buckets * world.micro_batches;
  numbers.sent[static_cast<std::size_t>(Collective::reduce)] =
      units * unit_numel * fp32 * world.micro_batches;
  add_order(numbers, world, buckets);
  numbers.memory.main_gradients = own * fp32;
  numbers.memory.parameter_slots = buckets * slot;
  numbers.memory.gradient_slots = *options.gradient_slots * slot;
  numbers.unsharded_peak = buckets * slot;
  numbers.gradient_peak = buckets / units * slot;
  return numbers;
}

/// Even slices: `sharded_optimizer` and `full_shard`. One bucket for each unit.
Numbers sliced_numbers(const Row& row, const Place& world) {
  const Options& options = row.options;
  const bool stays = options.strategy == Strategy::sharded_optimizer;
  const std::int64_t m = world.micro_batches;
  const std::int64_t members = world.ranks / options.mesh.replicate;
  const std::int64_t shard = rounded_up(unit_numel, alignment * members) / members;
  const auto element = static_cast<std::int64_t>(size_of(row.dtype));
  const std::int64_t slot = rounded_up(shard * members * element, 256);
  const std::int64_t gradient_slot = rounded_up(shard * members * fp32, 256);
  const std::int64_t kept = options.keep_gathered.empty() ? 0 : 1;
  const std::int64_t slots =
      stays || !options.reshard_after_forward ? units : *options.slots + kept;

  Numbers numbers;
  // Two for each use of a unit, less what the slots keep across the turns; or one for each.
  const std::int64_t turns = 2 * m - 1;
  const std::int64_t gathers =
      slots == units ? units : 2 * m * (units - kept) - *options.slots * turns + kept;
  if (options.regather_group_size > 0) {
    numbers.collective(Collective::all_gather, units, shard * element);
    numbers.collective(Collective::all_gather, gathers - units, shard * members / 2 * element);
    numbers.memory.kept_parameters = units * shard * members / 2 * element;
  } else {
    numbers.collective(Collective::all_gather, gathers, shard * element);
  }
  numbers.collective(Collective::reduce_scatter, units * m, shard * members * fp32);
  if (options.mesh.replicate > 1) {
    numbers.collective(Collective::all_reduce, options.sum_replicas_at_step_end ? units : units * m,
                       shard * fp32);
  }
  if (stays) {
    add_order(numbers, world, units);
  }
  numbers.memory.main_weights = stays && row.dtype == DType::f32 ? 0 : units * shard * fp32;
  numbers.memory.main_gradients = units * shard * fp32;
  numbers.memory.parameter_slots = slots * slot;
  numbers.memory.gradient_slots =
      (options.free_full_gradients ? *options.gradient_slots : units) * gradient_slot;
  numbers.unsharded_peak = slots * slot;
  numbers.gradient_peak = gradient_slot;
  return numbers;
}

TEST_CASE("what each strategy launches, sends and holds is what the formulas say, in every step") {
  constexpr int steps = 5;
  for (const Row& row : rows()) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      if (ranks % row.ranks_multiple != 0) {
        continue;
      }
      for (const int micro_batches : {1, 2}) {
        for (const bool overlap : {true, false}) {
          CAPTURE(std::string(row.name));
          CAPTURE(ranks);
          CAPTURE(micro_batches);
          CAPTURE(overlap);
          Options options = row.options;
          options.overlap = overlap;
          CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
                  const Place place{ranks, world.rank(), micro_batches};
                  const Numbers right = options.strategy == Strategy::owner_broadcast
                                            ? owner_numbers(options, place)
                                            : sliced_numbers(row, place);
                  Runtime runtime(
                      world,
                      toy_model(std::vector<std::vector<std::int64_t>>(units, {64, 32}), row.dtype),
                      options);
                  ToyTrainer trainer{runtime, world.rank()};
                  ToyOptimizer optimizer{OptimizerKind::adamw};
                  trainer.initialize();
                  DeviceCounters& counters = world.device().counters();
                  for (int step = 0; step < steps; ++step) {
                    counters.unsharded_bytes_peak = counters.unsharded_bytes.load();
                    counters.gradient_bytes_peak = counters.gradient_bytes.load();
                    const std::int64_t allocations = counters.allocations;
                    static_cast<void>(trainer.step(plain_step(units, micro_batches), step));
                    optimizer.step(runtime);
                    const std::string at = "rank " + std::to_string(world.rank()) + ", step " +
                                           std::to_string(step) + ": ";
                    findings.equal(counters.unsharded_bytes_peak.load(), right.unsharded_peak,
                                   at + "peak of gathered bytes");
                    findings.equal(counters.gradient_bytes_peak.load(), right.gradient_peak,
                                   at + "peak of gradient bytes");
                    if (step == 0) {
                      continue;  // AdamW makes its states; the order is not learned
                    }
                    findings.equal(counters.allocations.load(), allocations, at + "allocations");
                    const Report report = runtime.report();
                    for (std::size_t op = 0; op < collective_count; ++op) {
                      const std::string name = at + to_string(static_cast<Collective>(op));
                      findings.equal(static_cast<std::int64_t>(report.collectives_last_step[op]),
                                     right.launches[op], name);
                      findings.equal(static_cast<std::int64_t>(report.bytes_sent_last_step[op]),
                                     right.sent[op], name + ", bytes");
                    }
                  }
                  const MemoryReport memory = runtime.report().memory;
                  findings.equal(memory.main_weights, right.memory.main_weights, "main weights");
                  findings.equal(memory.main_gradients, right.memory.main_gradients,
                                 "main gradients");
                  findings.equal(memory.parameter_slots, right.memory.parameter_slots, "slots");
                  findings.equal(memory.gradient_slots, right.memory.gradient_slots,
                                 "gradient slots");
                  findings.equal(memory.kept_parameters, right.memory.kept_parameters, "kept");
                  findings.equal(memory.optimizer, 2 * right.memory.main_gradients, "optimizer");
                }) == "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::test
