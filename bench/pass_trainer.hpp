/// A trainer's thread as the layer benchmarks see it: passes of forwards over equal units, on
/// Troupe or on the baseline under one lock, so that both are driven by the same loop.
#pragma once

#include "troupe/core/bucket_plan.hpp"
#include "troupe/core/memory_plan.hpp"
#include "troupe/core/schedule.hpp"

#include <chrono>
#include <cstdint>
#include <functional>

namespace troupe::bench {

/// One rank. Each call is an event that the benchmark may time; errors are thrown.
class PassTrainer {
 public:
  PassTrainer() = default;
  PassTrainer(const PassTrainer&) = delete;
  PassTrainer& operator=(const PassTrainer&) = delete;
  virtual ~PassTrainer() = default;

  virtual void begin_pass() = 0;
  /// Forward of `unit`: on return its parameters may be used.
  virtual void begin(UnitId unit) = 0;
  /// Of the unit begun last.
  virtual void end() = 0;
  virtual void end_pass() = 0;
  /// What the schedule has decided so far.
  virtual ScheduleCounters counters() const = 0;
};

struct PassSetup {
  int ranks = 1;
  int units = 16;
  std::int64_t unit_numel = 4;  ///< fp32: 16 bytes, so that the collective itself costs little
  int slots = 3;
  int prefetch_depth = 2;
  /// How long trainer and comm threads poll before they sleep.
  std::chrono::microseconds poll{0};
  /// The trainer computes on a worker stream: a begin returns when the gather is launched, not when
  /// it is done (Troupe only).
  bool worker_stream = false;
  /// Called by the rank's comm thread when a collective is launched (Troupe only); may be empty.
  std::function<void(int rank)> on_launch{};
};

/// `units` units of one parameter each.
Model equal_units(const PassSetup& setup);

/// Runs `body` on each of the ranks, on a thread of its own.
using PassBody = std::function<void(PassTrainer& trainer, int rank)>;
void with_troupe(const PassSetup& setup, const PassBody& body);

/// The baseline: the same schedule, the same state table and the same collectives in the same
/// order, but all state of all ranks under one mutex, and every wait on one condition variable, as
/// in frameworks whose ranks or streams share a lock. It has a comm thread per rank, holds the lock
/// only to change state, notifies after letting go, and launches and copies without it.
void with_one_lock(const PassSetup& setup, const PassBody& body);

}  // namespace troupe::bench
