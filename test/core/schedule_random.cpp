#include "schedule_random.hpp"

#include "schedule_fixture.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::testing {

namespace {

/// One slot class per `class_of` value, each large enough for the largest unit, with up to `spare`
/// slots more.
std::vector<SchedulePlan::Class> random_classes(
    Random& random,
    const std::vector<std::vector<BucketId>>& unit_buckets,
    const std::vector<std::uint32_t>& class_of,
    std::uint32_t class_count,
    std::uint32_t spare) {
  std::vector<SchedulePlan::Class> classes;
  SlotId first = 0;
  for (std::uint32_t index = 0; index < class_count; ++index) {
    std::uint32_t need = 1;
    for (const auto& buckets : unit_buckets) {
      const auto own =
          std::ranges::count_if(buckets, [&](BucketId b) { return class_of[b] == index; });
      need = std::max(need, static_cast<std::uint32_t>(own));
    }
    const std::uint32_t count = need + random.below(spare + 1);
    classes.push_back({first, count, "limit"});
    first += count;
  }
  return classes;
}

SchedulePlan random_plan(Random& random) {
  const std::uint32_t units = 2 + random.below(8);
  const std::uint32_t buckets = units + random.below(4);
  SchedulePlan plan;
  plan.unit_buckets.resize(units);
  for (BucketId bucket = 0; bucket < buckets; ++bucket) {
    plan.unit_buckets[bucket < units ? bucket : random.below(units)].push_back(bucket);
  }
  std::vector<bool> tied(buckets);
  for (std::uint32_t ties = random.percent(40) ? 1 + random.below(2) : 0; ties > 0; --ties) {
    const BucketId bucket = random.below(buckets);
    auto& second = plan.unit_buckets[random.below(units)];
    if (std::ranges::find(second, bucket) == second.end()) {
      second.insert(std::ranges::upper_bound(second, bucket), bucket);
      tied[bucket] = true;
    }
  }
  if (random.percent(10)) {
    plan.unit_buckets[random.below(units)].clear();
  }

  const std::uint32_t slot_classes = 1 + random.below(3);
  std::uint32_t gradient_classes = 1 + random.below(2);
  const std::uint32_t shared_gradient_classes = gradient_classes;
  const bool ties_apart = random.percent(70);
  for (BucketId bucket = 0; bucket < buckets; ++bucket) {
    plan.slot_class.push_back(random.below(slot_classes));
    std::uint32_t gradient_class = random.below(shared_gradient_classes);
    if (tied[bucket] && ties_apart) {
      gradient_class = gradient_classes++;
    }
    plan.gradient_class.push_back(random.percent(85) ? gradient_class : SchedulePlan::no_class);
  }
  plan.slot_classes = random_classes(random, plan.unit_buckets, plan.slot_class, slot_classes, 4);
  plan.gradient_classes =
      random_classes(random, plan.unit_buckets, plan.gradient_class, gradient_classes, 3);
  plan.prefetch_depth = static_cast<int>(random.below(5));
  give_names(plan);
  return plan;
}

/// Writes the calls of a trainer.
class Writer {
 public:
  Writer(Random& random, const SchedulePlan& plan)
      : random_(random),
        units_(static_cast<std::uint32_t>(plan.unit_buckets.size())),
        buckets_(static_cast<std::uint32_t>(plan.slot_class.size())),
        nesting_(std::array{0U, 0U, 20U}[random.below(3)]),
        wrong_calls_(std::array{0U, 1U, 4U}[random.below(3)]),
        order_(units_) {
    for (UnitId unit = 0; unit < units_; ++unit) {
      order_[unit] = unit;
    }
  }

  std::vector<Event> write(std::uint32_t steps) {
    update();
    for (std::uint32_t step = 0; step < steps; ++step) {
      if (random_.percent(15)) {
        eval(0);
      }
      for (std::uint32_t rest = 1 + random_.below(3); rest > 0; --rest) {
        micro_batch();
      }
      add(EventKind::step_end);
      update();
    }
    return std::move(events_);
  }

 private:
  std::size_t add(EventKind kind, std::uint32_t id = 0, std::size_t begun_by = Event::no_begin) {
    if (random_.percent(wrong_calls_)) {
      wrong_call();
    }
    events_.push_back({kind, id, begun_by});
    return events_.size() - 1;
  }

  /// A call that does not belong here; most are refused or ignored.
  void wrong_call() {
    constexpr std::array kinds{EventKind::begin_micro_batch, EventKind::end_micro_batch,
                               EventKind::end_forward,       EventKind::end_backward,
                               EventKind::end_eval,          EventKind::step_end,
                               EventKind::begin_forward,     EventKind::begin_backward};
    const EventKind kind = kinds[random_.below(kinds.size())];
    events_.push_back({kind, random_.below(units_), Event::no_begin});
    if (kind == EventKind::begin_forward || kind == EventKind::begin_backward) {
      const std::size_t begin = events_.size() - 1;
      const bool backward = kind == EventKind::begin_backward;
      events_.push_back(
          {backward ? EventKind::end_backward : EventKind::end_forward, events_[begin].id, begin});
    }
  }

  void update() {
    if (random_.percent(50)) {
      add(EventKind::begin_update);
    }
    std::vector<BucketId> order(buckets_);
    for (BucketId bucket = 0; bucket < buckets_; ++bucket) {
      order[bucket] = bucket;
    }
    if (random_.percent(60)) {
      for (std::uint32_t i = buckets_; i > 1; --i) {
        std::swap(order[i - 1], order[random_.below(i)]);
      }
    }
    for (const BucketId bucket : order) {
      if (!random_.percent(1)) {  // a forgotten one
        add(EventKind::updated, bucket);
      }
    }
  }

  void forward_of(UnitId unit) {
    const std::size_t begin = add(EventKind::begin_forward, unit);
    add(EventKind::end_forward, unit, begin);
  }

  /// Forwards of `order` from `first` to `last`; what was used is appended to `seen`.
  void forwards(const std::vector<UnitId>& order,
                std::size_t first,
                std::size_t last,
                int depth,
                std::vector<UnitId>& seen) {
    for (std::size_t i = first; i < last; ++i) {
      const UnitId unit = order[i];
      if (random_.percent(5)) {
        continue;  // skipped
      }
      const std::size_t begin = add(EventKind::begin_forward, unit);
      if (depth < 2 && random_.percent(nesting_)) {
        const std::size_t inner = std::min<std::size_t>(last, i + 2 + random_.below(2));
        forwards(order, i + 1, inner, depth + 1, seen);
        i = inner - 1;
      }
      if (depth < 2 && random_.percent(2)) {
        eval(depth + 1);  // with the use open
      }
      add(EventKind::end_forward, unit, begin);
      seen.push_back(unit);
      if (random_.percent(5)) {
        forward_of(unit);  // used twice
        seen.push_back(unit);
      }
    }
  }

  void eval(int depth) {
    const std::size_t begin = add(EventKind::begin_eval);
    std::vector<UnitId> seen;
    for (std::uint32_t batches = random_.below(3); batches > 0; --batches) {
      forwards(order_, 0, order_.size(), depth, seen);
    }
    add(EventKind::end_eval, 0, begin);
  }

  void backward_of(UnitId unit, bool recompute) {
    if (recompute && random_.percent(30)) {
      forward_of(unit);  // before its backward
    }
    const std::size_t begin = add(EventKind::begin_backward, unit);
    if (recompute) {
      forward_of(unit);
    }
    if (random_.percent(nesting_)) {
      const UnitId inner_unit = random_.below(units_);
      const std::size_t inner = add(EventKind::begin_backward, inner_unit);
      if (random_.percent(50)) {  // overlapping instead of nested
        add(EventKind::end_backward, unit, begin);
        add(EventKind::end_backward, inner_unit, inner);
        return;
      }
      add(EventKind::end_backward, inner_unit, inner);
    }
    add(EventKind::end_backward, unit, begin);
  }

  void micro_batch() {
    const std::size_t begin = add(EventKind::begin_micro_batch);
    if (random_.percent(30)) {  // the order of units changes
      std::swap(order_[random_.below(units_)], order_[random_.below(units_)]);
    }
    std::vector<UnitId> seen;
    if (!random_.percent(3)) {
      forwards(order_, 0, order_.size(), 0, seen);
    }
    if (random_.percent(15)) {
      eval(0);
    }
    if (random_.percent(2)) {
      update();
    }
    const bool recompute = random_.percent(30);
    for (std::size_t i = seen.size(); i > 0; --i) {
      if (!random_.percent(3)) {
        backward_of(seen[i - 1], recompute);
      }
    }
    add(EventKind::end_micro_batch, 0, begin);
  }

  Random& random_;
  std::uint32_t units_;
  std::uint32_t buckets_;
  std::uint32_t nesting_;      ///< percent
  std::uint32_t wrong_calls_;  ///< percent
  std::vector<UnitId> order_;
  std::vector<Event> events_;
};

}  // namespace

std::string describe(const Event& event) {
  constexpr std::array names{"begin_micro_batch", "end_micro_batch", "begin_forward", "end_forward",
                             "begin_backward",    "end_backward",    "begin_eval",    "end_eval",
                             "step_end",          "begin_update",    "updated"};
  return std::string(names[static_cast<std::size_t>(event.kind)]) + " " + std::to_string(event.id);
}

Program random_program(std::uint64_t seed) {
  Random random(seed);
  SchedulePlan plan = random_plan(random);
  std::vector<Event> events = Writer(random, plan).write(3);
  return {std::move(plan), std::move(events)};
}

Result<void> apply(const Event& event, Schedule& schedule) {
  switch (event.kind) {
    case EventKind::begin_micro_batch:
      return schedule.begin_micro_batch();
    case EventKind::end_micro_batch:
      return schedule.end_micro_batch();
    case EventKind::begin_forward:
      return schedule.begin(event.id, false);
    case EventKind::end_forward:
      return schedule.end(event.id, false);
    case EventKind::begin_backward:
      return schedule.begin(event.id, true);
    case EventKind::end_backward:
      return schedule.end(event.id, true);
    case EventKind::begin_eval:
      return schedule.begin_eval();
    case EventKind::end_eval:
      return schedule.end_eval();
    case EventKind::step_end:
      return schedule.step_end();
    case EventKind::begin_update:
      return schedule.begin_update();
    case EventKind::updated:
      return schedule.updated(event.id);
  }
  return {};
}

}  // namespace troupe::testing
