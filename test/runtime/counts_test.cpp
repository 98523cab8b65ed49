/// Memory and collectives are exactly what was planned, in every step.
#include "troupe/test/support/toy_trainer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>

namespace troupe::test {
namespace {

constexpr auto op(Collective collective) {
  return static_cast<std::size_t>(collective);
}

/// Eight equal units of one bucket each.
std::vector<std::vector<std::int64_t>> equal_units() {
  return std::vector<std::vector<std::int64_t>>(8, {64, 32});
}

struct StepCounts {
  std::int64_t unsharded_peak = 0;
  std::int64_t gradient_peak = 0;
  std::int64_t allocations = 0;
  std::array<std::uint64_t, collective_count> collectives{};
};

/// What rank 0 counted in each of `steps` steps (the update included).
std::vector<StepCounts> count_steps(
    int ranks, const Options& options, int micro_batches, int steps, OptimizerKind optimizer_kind) {
  std::vector<StepCounts> counts;
  World::local(ranks,
               {.timeout = std::chrono::seconds{60}, .on_warning = [](const std::string&) {}})
      .run([&](World& world) {
        Runtime runtime(world, toy_model(equal_units()), options);
        ToyTrainer trainer{runtime, world.rank()};
        ToyOptimizer optimizer{optimizer_kind};
        trainer.initialize();
        DeviceCounters& counters = world.device().counters();
        for (int step = 0; step < steps; ++step) {
          counters.unsharded_bytes_peak = counters.unsharded_bytes.load();
          counters.gradient_bytes_peak = counters.gradient_bytes.load();
          const std::int64_t allocations = counters.allocations.load();
          static_cast<void>(trainer.step(plain_step(8, micro_batches), step));
          optimizer.step(runtime);
          if (world.rank() == 0) {
            counts.push_back({counters.unsharded_bytes_peak.load(),
                              counters.gradient_bytes_peak.load(),
                              counters.allocations.load() - allocations,
                              runtime.report().collectives_last_step});
          }
        }
        CHECK(counters.bytes[static_cast<std::size_t>(Purpose::parameter_slots)].load() ==
              runtime.memory_plan().parameters.bytes);
        CHECK(counters.bytes[static_cast<std::size_t>(Purpose::gradient_slots)].load() ==
              runtime.memory_plan().gradients.bytes);
        CHECK(counters.bytes[static_cast<std::size_t>(Purpose::temporary)].load() == 0);
      });
  return counts;
}

TEST_CASE("peak unsharded bytes are the planned slots, in every step, and no step allocates") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int slots : {1, 2, 3, 8}) {
      CAPTURE(ranks);
      CAPTURE(slots);
      Options options;
      options.slots = slots;
      options.gradient_slots = 2;
      const std::vector<StepCounts> counts =
          count_steps(ranks, options, 2, 4, OptimizerKind::adamw);
      // (64 + 32) fp32 elements, shards aligned to 16 elements.
      const std::int64_t shard = (96 + 16 * ranks - 1) / (16 * ranks) * 16;
      const std::int64_t slot_bytes = (shard * ranks * 4 + 255) / 256 * 256;
      for (std::size_t step = 0; step < counts.size(); ++step) {
        CAPTURE(step);
        CHECK(counts[step].unsharded_peak == slots * slot_bytes);
        CHECK(counts[step].gradient_peak ==
              slot_bytes);  // one backward at a time: the next begins after the reduce
        CHECK(counts[step].allocations ==
              (step == 0 ? 16 : 0));  // AdamW's two states for each bucket
      }
    }
  }
}

TEST_CASE("a step launches exactly the expected collectives") {
  for (const int slots : {1, 2, 3, 8}) {
    for (const int depth : {0, 1, 2}) {
      for (const int micro_batches : {1, 3}) {
        CAPTURE(slots);
        CAPTURE(depth);
        CAPTURE(micro_batches);
        Options options;
        options.slots = slots;
        options.prefetch_depth = depth;
        const std::vector<StepCounts> counts =
            count_steps(2, options, micro_batches, 5, OptimizerKind::sgd);
        // Each turn between forward and backward (and backward and the next micro-batch's forward)
        // keeps what the slots hold: two uses for each unit and micro-batch, less `slots` per turn.
        const int turns = 2 * micro_batches - 1;
        const auto gathers = static_cast<std::uint64_t>(16 * micro_batches - slots * turns);
        std::uint64_t all = 0;
        for (std::size_t step = 1; step < counts.size(); ++step) {
          CAPTURE(step);
          CHECK(counts[step].collectives[op(Collective::reduce_scatter)] ==
                static_cast<std::uint64_t>(8 * micro_batches));
          CHECK(counts[step].collectives[op(Collective::all_reduce)] == 0);
          CHECK(counts[step].collectives[op(Collective::broadcast)] == 0);
          all += counts[step].collectives[op(Collective::all_gather)];
        }
        CHECK(all == gathers * (counts.size() - 1));
      }
    }
  }
}

TEST_CASE("S31: the collectives of a step are part of the public report") {
  World::local(4, {.timeout = std::chrono::seconds{60}}).run([&](World& world) {
    Runtime runtime(world, toy_model({{64}, {64}, {64}, {64}}), {});
    ToyTrainer trainer{runtime, world.rank()};
    ToyOptimizer optimizer;
    trainer.initialize();
    for (int step = 0; step < 3; ++step) {
      static_cast<void>(trainer.step(plain_step(4, 1), step));
      optimizer.step(runtime);
    }
    // Three slots: of the four gathers of a backward only that of the first unit is needed.
    const Report report = runtime.report();
    CHECK(report.collectives_last_step[op(Collective::reduce_scatter)] == 4);
    CHECK(report.collectives_last_step[op(Collective::all_gather)] == 5);
    CHECK(report.steps == 3);
    CHECK(report.schedule.misses + report.schedule.hits == report.schedule.uses);
    CHECK(report.schedule.uses == 24);
  });
}

}  // namespace
}  // namespace troupe::test
