/// What the actors say to each other. Requests are verbs, facts are participles.
///
///     trainer   → scheduler   TrainerEvent
///     scheduler → bucket      Gather, BeginUse, EndUse, Evict, Contribute, Reduce,
///                             SumReplicas, StepEnd, Abandon
///     bucket    → comm        Launch
///     trainer   → comm        Launch (exports and collectives of its own: no bucket)
///     stream    → comm        StreamDone
///     comm      → bucket      Completed
///     anyone    → supervisor  Failed; supervisor → peers' supervisors PeerFailed
///     supervisor → all        Stop
///     trainer   → supervisor  Connect, in a new epoch
///
/// Plain values; pointers in them are to memory that outlives the actors of the rank.
#pragma once

#include "troupe/actors/event_set.hpp"
#include "troupe/comm/communicator.hpp"
#include "troupe/core/bucket_layout.hpp"
#include "troupe/core/mesh.hpp"
#include "troupe/core/schedule.hpp"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// Names an actor.
struct ActorTag {
  enum class Kind : std::uint8_t { supervisor, comm, scheduler, bucket };
  Kind kind = Kind::supervisor;
  int rank = 0;
  std::uint32_t runtime = 0;    ///< of a scheduler or bucket: which of the rank's, from 1
  BucketId bucket = no_bucket;  ///< of a bucket actor

  bool operator==(const ActorTag&) const = default;
};

/// Ranges of a gradient buffer that nobody wrote: zeroed before it is reduced.
using Ranges = std::shared_ptr<const std::vector<Range>>;

struct UnwrittenRanges {
  BucketId bucket = 0;
  Ranges ranges;
};
using Unwritten = std::shared_ptr<const std::vector<UnwrittenRanges>>;

enum class TrainerEventKind : std::uint8_t {
  begin_micro_batch,
  end_micro_batch,
  begin_use,
  end_use,
  abandon_use,
  begin_eval,
  end_eval,
  step_end,
  begin_update,
  updated,
  reshard,
  adopt_order,
};

const char* to_string(TrainerEventKind kind);

/// One call of the trainer, in program order.
struct TrainerEvent {
  std::uint64_t sequence = 0;
  TrainerEventKind kind = TrainerEventKind::begin_use;
  UnitId unit = 0;        ///< of a use
  BucketId bucket = 0;    ///< of `updated`
  bool changed = true;    ///< of `updated`
  bool backward = false;  ///< of a use
  bool reduces = true;    ///< of `begin_micro_batch`
  Event event{};          ///< end of a use or of an update on the trainer's stream
  Ticket next_ticket = 0;
  Unwritten unwritten{};  ///< end of a backward: where gradients were not written; null: nowhere
  std::shared_ptr<const AgreedOrder> order{};  ///< of `adopt_order`
};

struct Gather {
  Ticket ticket = 0;
  SlotId slot = 0;
  bool again = false;  ///< within the smaller group, of what its ranks have kept
  EventSet after{};    ///< last uses of the slot, last update of the bucket
};
struct BeginUse {};
struct EndUse {};
struct Evict {};
struct Contribute {
  SlotId gradient_slot = 0;
};
struct Reduce {
  Ticket ticket = 0;  ///< and the next one, if replicas are summed behind each reduce
  SlotId gradient_slot = 0;
  bool first = false;  ///< of its step: overwrites the main gradient, later ones add to it
  EventSet after{};    ///< the contributions
  Ranges unwritten{};  ///< null: only the gaps between parameters
};
/// Of the main gradient, over the replicas of a sharded model.
struct SumReplicas {
  Ticket ticket = 0;
};
struct StepEnd {};
struct Abandon {};

/// The two independent queues of collectives of a rank; user collectives share the second one.
enum class Channel : std::uint8_t { gather, reduce };
inline constexpr std::size_t channel_count = 2;

/// What happens on the collective's stream around it.
struct CastStep {
  DType from_dtype = DType::f32;
  const void* from = nullptr;
  DType dtype = DType::f32;
  void* to = nullptr;
  std::int64_t numel = 0;  ///< 0: no cast
};
struct ZeroStep {
  std::byte* data = nullptr;
  std::int64_t element_bytes = 0;
  Ranges ranges;  ///< null: nothing
};
struct AccumulateStep {
  DType sum_dtype = DType::f32;
  void* sum = nullptr;
  DType dtype = DType::f32;
  const void* part = nullptr;
  std::int64_t numel = 0;  ///< 0: nothing
  bool overwrite = false;
};

struct CopyStep {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t bytes = 0;  ///< 0: nothing
};

/// A collective of the trainer's own, shared by its call and the comm actor: the call may give up
/// waiting, the memory may not go before `over`.
struct OwnCollective {
  Event recorded;                 ///< its end; readable once the ticket is launched
  std::atomic<bool> over{false};  ///< done, failed or dropped: its buffers are no longer in use
};

template <class Handle>
struct BasicLaunch {
  Channel channel = Channel::gather;
  GroupAxis axis = GroupAxis::world;
  Communicator* group = nullptr;  ///< null: the whole world, on this channel
  CollectiveCall call;
  EventSet after;
  ZeroStep zero;              ///< before the collective
  CastStep cast;              ///< before it, behind the zeroing
  CopyStep copy;              ///< behind it
  AccumulateStep accumulate;  ///< behind it
  /// Receives the end of it all, before the ticket counts as launched; null: nobody asks.
  Event* recorded = nullptr;
  Handle bucket;                       ///< hears of the completion, …
  std::shared_ptr<OwnCollective> own;  ///< … or this does
};

struct StreamDone {
  Ticket ticket = 0;
  StreamReport report;
};
struct Completed {
  Ticket ticket = 0;
  std::optional<Failure> failure;
};

struct Failed {
  Failure failure;
};
struct PeerFailed {
  Failure failure;
};
struct Stop {};
/// To the comm actor, from its thread: time has passed while tickets were held back.
struct Tick {};

}  // namespace troupe
