#include "benchmarks.hpp"
#include "pass_trainer.hpp"
#include "troupe/core/error.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace troupe::bench {

namespace {

void check(const Result<void>& result) {
  if (!result) {
    throw Error(result.failure());
  }
}

/// Units of one bucket each, three slots, so that every forward evicts and gathers, and every
/// backward reduces.
SchedulePlan plan_of(std::uint32_t buckets) {
  SchedulePlan plan;
  for (BucketId bucket = 0; bucket < buckets; ++bucket) {
    plan.unit_buckets.push_back({bucket});
    plan.unit_names.emplace_back("unit");
    plan.bucket_names.emplace_back("bucket");
  }
  plan.slot_class.assign(buckets, 0);
  plan.gradient_class.assign(buckets, 0);
  plan.slot_classes = {{0, 3, "slots"}};
  plan.gradient_classes = {{0, 2, "gradient_slots"}};
  plan.prefetch_depth = 2;
  return plan;
}

/// Nanoseconds per begin or end of a use, in whole training steps.
double schedule_event_ns(std::uint32_t buckets, std::int64_t events) {
  Schedule schedule(plan_of(buckets));
  const std::int64_t steps = std::max<std::int64_t>(1, events / (4 * std::int64_t{buckets}));
  Nanoseconds total = 0;
  const auto use = [&](UnitId unit, bool backward) {
    check(schedule.begin(unit, backward));
    check(schedule.end(unit, backward));
  };
  for (std::int64_t step = -1; step < steps; ++step) {  // the first one records the order
    for (BucketId bucket = 0; bucket < buckets; ++bucket) {
      check(schedule.updated(bucket));
    }
    check(schedule.begin_micro_batch());
    const Nanoseconds begun = now_ns();
    for (UnitId unit = 0; unit < buckets; ++unit) {
      use(unit, false);
    }
    for (UnitId unit = buckets; unit-- > 0;) {
      use(unit, true);
    }
    if (step >= 0) {
      total += now_ns() - begun;
    }
    check(schedule.end_micro_batch());
    check(schedule.step_end());
  }
  return static_cast<double>(total) / static_cast<double>(steps * 4 * std::int64_t{buckets});
}

/// Nanoseconds per begin or end of a use that hits, on one rank.
double actor_event_ns(std::uint32_t buckets, std::int64_t events) {
  PassSetup setup;
  setup.units = static_cast<int>(buckets);
  setup.slots = setup.units;
  setup.prefetch_depth = setup.units - 1;
  const std::int64_t passes = std::max<std::int64_t>(1, events / (2 * std::int64_t{buckets}));
  Nanoseconds total = 0;
  with_troupe(setup, [&](PassTrainer& trainer, int) {
    for (std::int64_t pass = -1; pass < passes; ++pass) {  // the first one gathers
      trainer.begin_pass();
      const Nanoseconds begun = now_ns();
      for (UnitId unit = 0; unit < buckets; ++unit) {
        trainer.begin(unit);
        trainer.end();
      }
      if (pass >= 0) {
        total += now_ns() - begun;
      }
      trainer.end_pass();
    }
  });
  return static_cast<double>(total) / static_cast<double>(passes * 2 * std::int64_t{buckets});
}

}  // namespace

Table event_cost(const Effort& effort) {
  Table table{.name = "event_cost",
              .title = "Cost of one event by the number of buckets (ns; median of " +
                       std::to_string(effort.repetitions) + " runs, spread)",
              .columns = {{"path"}, {"buckets", 0}, {"event_ns", 0}, {"ratio_to_10"}, {"goal"}},
              .rows = {},
              .notes = {"schedule: begins and ends of whole training steps on core/schedule.hpp; "
                        "every forward evicts and gathers, every backward reduces.",
                        "runtime: begins and ends that hit, from the trainer's call through "
                        "scheduler and bucket actors, one rank; all buckets are held."}};
  const std::int64_t events = effort.quick ? 1 : 400'000;
  const auto add = [&](const char* path, double (*event_ns)(std::uint32_t, std::int64_t)) {
    double smallest = 0;
    for (const std::uint32_t buckets : {10U, 100U, 1'000U, 10'000U}) {
      const Spread cost = repeat(effort.repetitions, [&] { return event_ns(buckets, events); });
      smallest = buckets == 10 ? cost.median : smallest;
      table.rows.push_back({path, static_cast<double>(buckets), cost, cost.median / smallest,
                            buckets == 10'000 ? "<= 2" : ""});
    }
  };
  add("schedule", schedule_event_ns);
  add("runtime", actor_event_ns);
  return table;
}

}  // namespace troupe::bench
