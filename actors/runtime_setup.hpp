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

/// A process group as collectives name it. Null: that of the world.
struct Group {
  GroupAxis axis = GroupAxis::world;
  Communicator* gathers = nullptr;
  Communicator* reduces = nullptr;
};

/// What a bucket works on; constant while the runtime lives. Its full buffer has `numel` elements,
/// of which `own` are this rank's: an even part, or under owner_broadcast all or none.
struct BucketSetup {
  std::uint32_t runtime = 1;
  BucketId id = 0;
  std::string label;
  DType dtype = DType::f32;
  DType gradient_dtype = DType::f32;  ///< of its gradient slot
  DType reduce_dtype = DType::f32;    ///< of what is reduced
  Collective unshard_by = Collective::all_gather;
  Collective reduce_by = Collective::reduce_scatter;
  Group group;     ///< over which it is sharded
  int owner = -1;  ///< within the group; owner_broadcast only
  std::int64_t numel = 0;
  Range own;
  DType weight_dtype = DType::f32;     ///< of the main weights
  const void* main_weights = nullptr;  ///< (own.numel)
  DType main_gradient_dtype = DType::f32;
  void* main_gradients = nullptr;  ///< (own.numel); null: frozen
  /// (numel) of `reduce_dtype`, where the gradient is cast before its reduce, and shared by all
  /// buckets, since reduces come one after the other on one stream; null: it is not cast.
  std::byte* staging = nullptr;
  Ranges gaps;                   ///< of the full buffer; no parameter's
  Group replicas;                ///< those that hold the same part of other replicas (HSDP)
  bool sum_each_reduce = false;  ///< over the replicas; else they are not summed, or at step end
  Group regather;                ///< the smaller group that gathers again
  std::byte* kept = nullptr;     ///< (kept_range.numel) of `dtype`, for that; null: there is none
  Range kept_range;              ///< of the full buffer
};

struct SchedulerSetup {
  std::uint32_t runtime = 1;
  SchedulePlan plan;
  std::vector<std::int64_t> slot_bytes;           ///< per slot
  std::vector<std::int64_t> gradient_slot_bytes;  ///< per gradient slot
  /// Per bucket, all of its full buffer: what is zeroed where this rank has not used it. Empty if
  /// ranks agree on no order, since nothing is reduced then that was not used.
  std::vector<Ranges> whole = {};
};

/// The answer to one trainer event. Written by the scheduler before `handled`, read by the trainer
/// after it has seen `handled` reach its sequence number.
struct Answer {
  std::optional<Failure> refused;  ///< the event changed nothing
  Ticket next_ticket = 0;
  std::vector<UsedBucket> used;     ///< begin_use
  std::vector<BucketId> reduced;    ///< whose gradient is on its way
  std::vector<BucketId> unreduced;  ///< step_end: trainable, no gradient in this step
  AgreedOrder recorded;             ///< step_end, where ranks agree on an order
};

/// Bytes held now, and the most at any time.
struct HeldBytes {
  std::int64_t now = 0;
  std::int64_t peak = 0;
};

struct RuntimeWords {
  explicit RuntimeWords(std::size_t bucket_count) : states(bucket_count) {}

  alignas(64) std::atomic<std::uint64_t> handled{0};  ///< sequence of the last event answered
  Answer answer;
  ScheduleCounters counters;                ///< as of the last answer
  HeldBytes unsharded;                      ///< slots that hold parameters, as of then
  HeldBytes gradients;                      ///< gradient slots that are being filled
  std::atomic<std::uint64_t> requested{0};  ///< tickets sent to buckets, in program order
  alignas(64) std::atomic<std::uint64_t> answered{0};  ///< tickets that buckets have retired
  std::vector<std::atomic<BucketState>> states;        ///< per bucket, in its own view
  std::atomic<int> alive{0};                           ///< scheduler and buckets
};

}  // namespace troupe
