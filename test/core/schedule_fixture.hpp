/// What the tests of the schedule share: small plans, and a trainer that writes down what it is
/// told.
#pragma once

#include "troupe/core/schedule.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

/// Names for messages: units "a", "b", ...; buckets "0 'a'", ... by their first unit.
inline void give_names(SchedulePlan& plan) {
  plan.bucket_names.assign(plan.slot_class.size(), "");
  plan.unit_names.clear();
  for (std::size_t unit = 0; unit < plan.unit_buckets.size(); ++unit) {
    plan.unit_names.emplace_back(1, static_cast<char>('a' + unit));
    for (const BucketId bucket : plan.unit_buckets[unit]) {
      if (plan.bucket_names[bucket].empty()) {
        plan.bucket_names[bucket] = std::to_string(bucket) + " '" + plan.unit_names.back() + "'";
      }
    }
  }
}

/// All buckets in one class of `slots` slots and one of `gradient_slots` gradient slots.
inline SchedulePlan plan_of(std::vector<std::vector<BucketId>> unit_buckets,
                            std::uint32_t slots,
                            int prefetch_depth,
                            std::uint32_t gradient_slots) {
  std::size_t bucket_count = 0;
  for (const auto& buckets : unit_buckets) {
    for (const BucketId bucket : buckets) {
      bucket_count = std::max<std::size_t>(bucket_count, bucket + 1);
    }
  }
  SchedulePlan plan;
  plan.unit_buckets = std::move(unit_buckets);
  plan.slot_class.assign(bucket_count, 0);
  plan.gradient_class.assign(bucket_count, 0);
  plan.slot_classes = {{0, slots, "slots"}};
  plan.gradient_classes = {{0, gradient_slots, "gradient_slots"}};
  plan.prefetch_depth = prefetch_depth;
  give_names(plan);
  return plan;
}

/// Units with one bucket each, of the same number.
inline std::vector<std::vector<BucketId>> one_bucket_each(std::uint32_t units) {
  std::vector<std::vector<BucketId>> unit_buckets(units);
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    unit_buckets[unit] = {unit};
  }
  return unit_buckets;
}

inline SchedulePlan uniform_plan(std::uint32_t units,
                                 std::uint32_t slots,
                                 int prefetch_depth,
                                 std::uint32_t gradient_slots = 2) {
  return plan_of(one_bucket_each(units), slots, prefetch_depth, gradient_slots);
}

/// Where ranks agree on an order: a slot for each bucket; gathers in order of bucket, reduces in
/// the opposite one. `gradient_slots` in one class, or one for each bucket if 0.
inline SchedulePlan agreed_plan(std::vector<std::vector<BucketId>> unit_buckets,
                                int prefetch_depth,
                                std::uint32_t gradient_slots = 0,
                                const std::vector<BucketId>& frozen = {}) {
  SchedulePlan plan = plan_of(std::move(unit_buckets), 1, prefetch_depth, gradient_slots);
  const auto buckets = static_cast<BucketId>(plan.slot_class.size());
  plan.slot_classes.clear();
  for (BucketId bucket = 0; bucket < buckets; ++bucket) {
    plan.slot_class[bucket] = bucket;
    plan.slot_classes.push_back({bucket, 1, ""});
    plan.gradient_class[bucket] = gradient_slots == 0 ? bucket : 0;
    plan.first_order.gathers.push_back(bucket);
  }
  if (gradient_slots == 0) {
    plan.gradient_classes = plan.slot_classes;
  }
  for (const BucketId bucket : frozen) {
    plan.gradient_class[bucket] = SchedulePlan::no_class;
  }
  for (BucketId bucket = buckets; bucket > 0; --bucket) {
    if (plan.gradient_class[bucket - 1] != SchedulePlan::no_class) {
      plan.first_order.reduces.push_back(bucket - 1);
    }
  }
  plan.agreed = true;
  return plan;
}

constexpr const char* to_string(Command command) {
  switch (command) {
    case Command::gather:
      return "gather";
    case Command::regather:
      return "regather";
    case Command::use:
      return "use";
    case Command::release:
      return "release";
    case Command::evict:
      return "evict";
    case Command::contribute:
      return "contribute";
    case Command::reduce:
      return "reduce";
    case Command::sum_replicas:
      return "sum_replicas";
    case Command::step_end:
      return "step_end";
  }
  return "?";
}

/// "evict 0, gather 2, use 2".
inline std::string told(const Schedule& schedule) {
  std::string text;
  for (const Decision& decision : schedule.decisions()) {
    text += text.empty() ? "" : ", ";
    text += std::string(to_string(decision.command)) + " " + std::to_string(decision.bucket);
  }
  return text;
}

/// The decisions that launch a collective, with its ticket: "gather 2 at 1, reduce 0 at 2".
inline std::string launched(const Schedule& schedule) {
  std::string text;
  for (const Decision& decision : schedule.decisions()) {
    if (decision.ticket != 0) {
      text += text.empty() ? "" : ", ";
      text += std::string(to_string(decision.command)) + " " + std::to_string(decision.bucket) +
              " at " + std::to_string(decision.ticket);
    }
  }
  return text;
}

/// A trainer: each call answers with what the schedule told, or "refused: <why>".
class Trainer {
 public:
  explicit Trainer(SchedulePlan plan) : schedule(std::move(plan)) {}

  std::string micro_batch(bool reduces = true) {
    return answer(schedule.begin_micro_batch(reduces));
  }
  std::string end_micro_batch() { return answer(schedule.end_micro_batch()); }
  std::string forward(UnitId unit) { return answer(schedule.begin(unit, false)); }
  std::string end_forward(UnitId unit) { return answer(schedule.end(unit, false)); }
  std::string backward(UnitId unit) { return answer(schedule.begin(unit, true)); }
  std::string end_backward(UnitId unit) { return answer(schedule.end(unit, true)); }
  std::string eval() { return answer(schedule.begin_eval()); }
  std::string end_eval() { return answer(schedule.end_eval()); }
  std::string step_end() { return answer(schedule.step_end()); }
  std::string begin_update() { return answer(schedule.begin_update()); }
  std::string updated(BucketId bucket, bool changed = true) {
    return answer(schedule.updated(bucket, changed));
  }
  std::string reshard() { return answer(schedule.reshard()); }

  /// Updates all buckets in order.
  void update_all() {
    for (BucketId bucket = 0; bucket < schedule.plan().slot_class.size(); ++bucket) {
      static_cast<void>(updated(bucket));
    }
  }
  /// A forward, or a backward, of each of `units` from begin to end.
  void forwards(const std::vector<UnitId>& units) {
    for (const UnitId unit : units) {
      static_cast<void>(forward(unit));
      static_cast<void>(end_forward(unit));
    }
  }
  void backwards(const std::vector<UnitId>& units) {
    for (const UnitId unit : units) {
      static_cast<void>(backward(unit));
      static_cast<void>(end_backward(unit));
    }
  }

  Schedule schedule;
  std::string launches;  ///< of all calls so far, see `launched`

 private:
  std::string answer(const Result<void>& result) {
    if (!result.ok()) {
      return "refused: " + result.failure().text;
    }
    const std::string more = launched(schedule);
    launches += (launches.empty() || more.empty() ? "" : ", ") + more;
    return told(schedule);
  }
};

/// A trainer whose parameters are up to date and whose first micro-batch has begun.
inline Trainer trainer_in_micro_batch(SchedulePlan plan) {
  Trainer trainer(std::move(plan));
  trainer.update_all();
  static_cast<void>(trainer.micro_batch());
  return trainer;
}

}  // namespace troupe::testing
