/// What the actors of one runtime work on, and the words that they share with the trainer's thread.
#pragma once

#include "troupe/actors/messages.hpp"
#include "troupe/core/bucket_state.hpp"
#include "troupe/core/schedule.hpp"

#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// Where the slots of a runtime lie, and the event that ends the last collective on each.
/// See [Note: launched tickets] in rank_state.hpp on who may read the events when.
struct SlotTable {
  std::vector<std::byte*> slots;
  std::vector<Event> gathered;  ///< per slot
  std::vector<std::byte*> gradient_slots;
  std::vector<Event> reduced;  ///< per gradient slot
};

/// What a bucket works on; constant while the runtime lives.
struct BucketSetup {
  BucketId id = 0;
  std::string label;
  DType dtype = DType::f32;
  DType gradient_dtype = DType::f32;
  std::int64_t shard_numel = 0;
  float* main_weights = nullptr;    ///< (shard_numel)
  float* main_gradients = nullptr;  ///< (shard_numel); null: frozen
  Ranges gaps;                      ///< of the full buffer; no parameter's
};

struct SchedulerSetup {
  SchedulePlan plan;
  std::vector<std::int64_t> slot_bytes;           ///< per slot
  std::vector<std::int64_t> gradient_slot_bytes;  ///< per gradient slot
};

/// The answer to one trainer event. Written by the scheduler before `handled`, read by the trainer
/// after it has seen `handled` reach its sequence number.
struct Answer {
  std::optional<Failure> refused;  ///< the event changed nothing
  Ticket next_ticket = 0;
  std::vector<UsedBucket> used;     ///< begin_use
  std::vector<BucketId> reduced;    ///< whose gradient is on its way
  std::vector<BucketId> unreduced;  ///< step_end: trainable, no gradient in this step
};

struct RuntimeWords {
  explicit RuntimeWords(std::size_t bucket_count) : states(bucket_count) {}

  alignas(64) std::atomic<std::uint64_t> handled{0};  ///< sequence of the last event answered
  Answer answer;
  ScheduleCounters counters;                ///< as of the last answer
  std::atomic<std::uint64_t> requested{0};  ///< tickets sent to buckets, in program order
  alignas(64) std::atomic<std::uint64_t> answered{0};  ///< tickets that buckets have retired
  std::vector<std::atomic<BucketState>> states;        ///< per bucket, in its own view
  std::atomic<int> alive{0};                           ///< scheduler and buckets
};

}  // namespace troupe
