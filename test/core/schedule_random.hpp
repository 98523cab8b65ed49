/// Random plans and random training programs for the property test of the schedule: nested uses,
/// skipped and repeated units, recomputation, eval in the middle, ties, several buckets per unit,
/// size classes, and calls that must be refused. The same seed gives the same program everywhere.
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
};

struct Event {
  static constexpr std::size_t no_begin = ~std::size_t{0};

  EventKind kind = EventKind::begin_micro_batch;
  std::uint32_t id = 0;  ///< unit, or bucket of `updated`
  /// Of an end: the event that began it. If that one was refused, the trainer makes no end.
  std::size_t begun_by = no_begin;
};

std::string describe(const Event& event);

struct Program {
  SchedulePlan plan;
  std::vector<Event> events;
};

Program random_program(std::uint64_t seed);

/// Calls the schedule as the event says.
Result<void> apply(const Event& event, Schedule& schedule);

}  // namespace troupe::testing
