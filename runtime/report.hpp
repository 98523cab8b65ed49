/// What a runtime did and holds, in numbers; all of one rank.
#pragma once

#include "troupe/core/schedule.hpp"
#include "troupe/core/step_time.hpp"
#include "troupe/core/strategy.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace troupe {

/// Bytes allocated for each purpose. Constant after the first step.
struct MemoryReport {
  /// Shards; those of the dtype of parameters whose full buffers stay lie in there, in parameter
  /// slots.
  std::int64_t main_weights = 0;
  std::int64_t main_gradients = 0;  ///< shards
  std::int64_t parameter_slots = 0;
  std::int64_t gradient_slots = 0;
  std::int64_t gradient_staging = 0;  ///< where gradients are cast before they are reduced
  std::int64_t kept_parameters = 0;   ///< of what was gathered, for a smaller group
  std::int64_t wide_shard = 0;        ///< where an update sees a shard of bf16 in fp32
  std::int64_t optimizer = 0;
  /// Most slot bytes that held gathered parameters, or gradients being filled, at any time.
  std::int64_t unsharded_peak = 0;
  std::int64_t gradients_peak = 0;

  std::int64_t total() const {
    return main_weights + main_gradients + parameter_slots + gradient_slots + gradient_staging +
           kept_parameters + wide_shard + optimizer;
  }
};

struct Report {
  Strategy strategy = Strategy::full_shard;
  int rank = 0;
  int world_size = 1;
  std::uint64_t steps = 0;
  MemoryReport memory;
  /// What one rank would hold without sharding, in the same dtypes.
  MemoryReport unsharded;
  /// Since construction, of this rank and all its runtimes, by `Collective`.
  std::array<std::uint64_t, collective_count> collectives{};
  /// Between the last two step ends.
  std::array<std::uint64_t, collective_count> collectives_last_step{};
  /// What this rank handed to them: its own part of an all-gather, all of what is reduced, of a
  /// broadcast what it is the root of.
  std::array<std::uint64_t, collective_count> bytes_sent{};
  std::array<std::uint64_t, collective_count> bytes_sent_last_step{};
  ScheduleCounters schedule;
  /// Time that the trainer's thread has spent waiting for communication, in calls of all runtimes
  /// of this rank and of the world.
  std::chrono::nanoseconds waited{};
  /// Where the time of the last step went, see [Note: the time of a step] in core/step_time.hpp.
  /// None if no step has ended, or if it computed on a worker stream.
  std::optional<StepTime> time_last_step{};
  /// The sum over the steps of which it is known, and how many those are.
  StepTime time_steps{};
  std::uint64_t steps_timed = 0;
};

/// A few lines for people.
std::string to_text(const Report& report);

}  // namespace troupe
