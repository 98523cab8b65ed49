/// Random plans and random training programs for the property test of the schedule: nested uses,
/// skipped and repeated units, recomputation, eval in the middle, micro-batches that do not reduce,
/// ties, several buckets per unit, size classes, calls that must be refused, and what the
/// strategies add: an agreed order, gathers within a smaller group, sums over replicas. The same
/// seed gives the same program everywhere.
#pragma once

#include "troupe/core/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::testing {

/// SplitMix64 (Steele et al. 2014). The distributions of the standard library differ between
/// implementations; these do not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// 0 to `bound` - 1; `bound` ≥ 1.
  std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(((next() >> 32) * bound) >> 32);
  }
  bool percent(std::uint32_t chance) { return below(100) < chance; }

 private:
  std::uint64_t state_;
};

void shuffle(Random& random, std::vector<BucketId>& buckets);

enum class EventKind : std::uint8_t {
  begin_micro_batch,
  end_micro_batch,
  begin_forward,
  end_forward,
  begin_backward,
  end_backward,
  begin_eval,
  end_eval,
  step_end,
  begin_update,
  updated,
  reshard,
  adopt,
};

struct Event {
  static constexpr std::size_t no_begin = ~std::size_t{0};

  EventKind kind = EventKind::begin_micro_batch;
  std::uint32_t id = 0;  ///< unit, bucket of `updated`, or of `adopt` see `order_to_adopt`
  /// Of an end: the event that began it. If that one was refused, the trainer makes no end.
  std::size_t begun_by = no_begin;
  bool changed = true;  ///< of `updated`
  bool reduces = true;  ///< of `begin_micro_batch`
};

inline bool begins_use(const Event& event) {
  return event.kind == EventKind::begin_forward || event.kind == EventKind::begin_backward;
}

inline bool ends_use(const Event& event) {
  return event.kind == EventKind::end_forward || event.kind == EventKind::end_backward;
}

std::string describe(const Event& event);

struct Program {
  SchedulePlan plan;
  std::vector<Event> events;
};

Program random_program(std::uint64_t seed);

/// Slots shared by classes of buckets, as `full_shard` has them.
SchedulePlan random_plan(Random& random);

/// A slot for each bucket, and an agreed order. With `relieved` false there are as many gradient
/// slots as buckets, so that no backward makes others go out of turn.
SchedulePlan random_agreed_plan(Random& random, bool relieved);

/// What an `adopt` with this `id` adopts: 0, the record of the last step; else that of a rank which
/// used the units in some other order.
AgreedOrder order_to_adopt(std::uint32_t id, const AgreedOrder& recorded);

/// Calls the schedule as the event says.
Result<void> apply(const Event& event, Schedule& schedule);

}  // namespace troupe::testing
