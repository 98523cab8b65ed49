// Random training programs: the calls of a trainer, right and wrong ones.
#include "schedule_random.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::testing {

namespace {

/// Writes the calls of a trainer.
class Writer {
 public:
  Writer(Random& random, const SchedulePlan& plan)
      : random_(random),
        units_(static_cast<std::uint32_t>(plan.unit_buckets.size())),
        buckets_(static_cast<std::uint32_t>(plan.slot_class.size())),
        agreed_(plan.agreed),
        without_reduce_(plan.accumulates ? std::array{0U, 40U, 80U}[random.below(3)] : 2U),
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
      const std::size_t end = add(EventKind::step_end);
      if (agreed_) {
        const std::uint32_t order = random_.percent(70) ? 0 : 1 + random_.below(1'000);
        events_.push_back({EventKind::adopt, order, end});
      }
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
    constexpr std::array kinds{
        EventKind::begin_micro_batch, EventKind::end_micro_batch, EventKind::end_forward,
        EventKind::end_backward,      EventKind::end_eval,        EventKind::step_end,
        EventKind::reshard,           EventKind::begin_forward,   EventKind::begin_backward};
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
      shuffle(random_, order);
    }
    for (const BucketId bucket : order) {
      if (!random_.percent(1)) {  // a forgotten one
        events_[add(EventKind::updated, bucket)].changed = random_.percent(70);
      }
      if (agreed_ && random_.percent(2)) {
        eval(0);  // with what is up to date
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
    events_[begin].reduces = !random_.percent(without_reduce_);
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
    if (random_.percent(10)) {
      add(EventKind::reshard);
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
  bool agreed_;
  std::uint32_t without_reduce_;  ///< percent
  std::uint32_t nesting_;         ///< percent
  std::uint32_t wrong_calls_;     ///< percent
  std::vector<UnitId> order_;
  std::vector<Event> events_;
};

}  // namespace

Program random_program(std::uint64_t seed) {
  Random random(seed);
  SchedulePlan plan = seed % 3 == 0 ? random_agreed_plan(random, true) : random_plan(random);
  std::vector<Event> events = Writer(random, plan).write(3);
  return {std::move(plan), std::move(events)};
}

}  // namespace troupe::testing
