/// The schedule: which bucket is gathered, evicted and reduced when, as a pure function of the
/// trainer's calls. No completion, timer or message order can change a decision, so that every rank
/// that makes the same calls launches the same collectives in the same order.
///
/// The twelve rules are in docs/architecture.md, [Note: the schedule]. In short: a begin pins what
/// is held and gathers what is absent (evicting the bucket whose predicted next use is farthest);
/// then it prefetches along the predicted order as long as that does no harm; an end unpins,
/// reduces a bucket whose last backward this was, and prefetches. The order is the one recorded in
/// the last step.
///
/// [Note: the agreed order] Where every bucket keeps its full buffer (owner_broadcast,
/// sharded_optimizer), a bucket is gathered once after each update, and ranks need not use the same
/// units: what launches collectives is then not the use but one order for all ranks, the one that
/// rank 0 recorded in the last step (the plan's until then). The first micro-batch that uses a
/// bucket says behind which others it comes; one that rank 0 did without keeps its place behind
/// what was before it. Thus units that rank 0 leaves out, once or always, do not change the order.
///
///  - Gathers are launched in that order only. A use launches those up to its own last bucket;
///    prefetches are those within `prefetch_depth` places behind the farthest place that a use has
///    reached, up to the first that is stale. Since that is a function of the farthest use, ranks
///    that differ in between are together again at their next common use.
///  - All gathers come before the first reduce: a backward, the end of a micro-batch or an eval and
///    an update inside a micro-batch launch what is left. A backward while a bucket is stale is
///    refused; after those ends such a bucket is gathered at its update. An update inside a
///    micro-batch comes before its backwards. Where ranks use different units, collectives of the
///    trainer's own come outside micro-batches and evals: inside, ranks part, and are told so.
///  - Each micro-batch reduces every trainable bucket once, in the agreed order. A bucket that is
///    complete waits for those before it; one that this rank has not used is reduced as zeros when
///    a later one waits; the end of the micro-batch reduces the rest. If a backward finds no
///    gradient slot, or that end none for zeros, waiting buckets go out of turn to make room: ranks
///    whose calls are the same stay together.
///  - A frozen bucket stays gathered until an update has changed it.
///
/// [Note: accumulation] A micro-batch may leave its gradients where they are, in the gradient slots
/// of their buckets, for the next one to add to; then every trainable bucket has one of its own.
/// The next micro-batch that reduces does so as if all were one: a bucket goes when its last
/// backward in this micro-batch has ended, what is not used in it at its end; under an agreed order
/// each once, one that is not used in it when a later one waits. What the last micro-batches of a
/// step have left is reduced when it ends, and nothing hides that.
///
/// Cost per event is O(1) in the number of buckets: a scan pointer, positions per bucket, victims
/// among the held buckets of one class only. Ends of steps, micro-batches and evals, and the begin
/// of an update, are O(buckets).
///
/// Thread rules: none; a value owned by one scheduler. Errors: a refused event returns a `Failure`
/// (misuse) that names units, buckets and the limit that would do, *and changes nothing*.
#pragma once

#include "troupe/core/error.hpp"
#include "troupe/core/ids.hpp"
#include "troupe/core/memory_plan.hpp"
#include "troupe/core/use_order.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// When gradients are summed over the replicas of a sharded model (HSDP).
enum class ReplicaSum : std::uint8_t {
  none,          ///< there is one replica
  every_reduce,  ///< by a second collective behind each reduce
  at_step_end,   ///< the main gradients, once
};

/// Order of launches that all ranks follow, each bucket once; of `reduces`, each trainable one.
struct AgreedOrder {
  std::vector<BucketId> gathers;
  std::vector<BucketId> reduces;
  bool operator==(const AgreedOrder&) const = default;
};

/// How a strategy schedules, besides its memory.
struct ScheduleRules {
  bool agreed = false;
  /// After the first gather since an update, later ones go through a smaller group, whose ranks
  /// have kept parts of it.
  bool regather = false;
  ReplicaSum replica_sum = ReplicaSum::none;
  /// [Note: accumulation] Micro-batches need not reduce: each trainable bucket has a gradient slot
  /// of its own.
  bool accumulates = false;
};

/// What the schedule knows of the model.
struct SchedulePlan {
  struct Class {
    SlotId first = 0;
    std::uint32_t count = 0;
    std::string option = {};  ///< what sets `count`, for messages; see `SlotClass`
  };
  static constexpr std::uint32_t no_class = SlotPlan::no_class;

  std::vector<std::vector<BucketId>> unit_buckets;  ///< per unit, in plan order, no repeats
  std::vector<std::uint32_t> slot_class;            ///< per bucket
  std::vector<std::uint32_t> gradient_class;        ///< per bucket; no_class: frozen
  std::vector<Class> slot_classes;
  std::vector<Class> gradient_classes;
  int prefetch_depth = 0;
  std::vector<std::string> unit_names;    ///< for messages
  std::vector<std::string> bucket_names;  ///< for messages

  /// Launches follow [Note: the agreed order]; each class of slots has one bucket.
  bool agreed = false;
  AgreedOrder first_order = {};      ///< `agreed`: until another is adopted
  std::vector<bool> regathers = {};  ///< per bucket, see `ScheduleRules`; empty: none
  ReplicaSum replica_sum = ReplicaSum::none;
  bool accumulates = false;  ///< see `ScheduleRules`
};

/// `rules.regather` concerns buckets of the data-parallel group only.
SchedulePlan make_schedule_plan(const Model& model,
                                const BucketPlan& plan,
                                const MemoryPlan& memory,
                                const ScheduleRules& rules = {});

/// What the scheduler has to tell a bucket.
enum class Command : std::uint8_t {
  gather,        ///< ticket, slot
  regather,      ///< ticket, slot: within the smaller group
  use,           ///< slot
  release,       ///< slot
  evict,         ///< slot
  contribute,    ///< slot: the gradient slot that this backward fills (once per reduce)
  reduce,        ///< ticket (of two, if replicas are summed behind it), slot: the gradient slot
  sum_replicas,  ///< ticket: of the main gradient
  step_end,      ///< slot: parameters go stale, the slot is given back
};

struct Decision {
  Command command = Command::gather;
  BucketId bucket = 0;
  SlotId slot = no_slot;
  Ticket ticket = 0;
  bool operator==(const Decision&) const = default;
};

/// One bucket of a use that has begun.
struct UsedBucket {
  BucketId bucket = 0;
  SlotId slot = no_slot;
  Ticket gather = 0;                ///< the gather that filled the slot
  bool hit = false;                 ///< it was held already
  SlotId gradient_slot = no_slot;   ///< backward of a trainable bucket only
  bool first_contribution = false;  ///< the gradient slot was taken by this begin
  Ticket previous_reduce = 0;       ///< last reduce that read the gradient slot; 0 if none
};

struct ScheduleCounters {
  std::uint64_t uses = 0;           ///< bucket uses begun
  std::uint64_t hits = 0;           ///< … already held, …
  std::uint64_t prefetch_hits = 0;  ///< … of these gathered ahead and used for the first time
  std::uint64_t misses = 0;         ///< … gathered on demand
  std::uint64_t gathers = 0;        ///< regathers too
  std::uint64_t regathers = 0;      ///< … within the smaller group
  std::uint64_t reduces = 0;
  std::uint64_t zero_reduces = 0;  ///< … of buckets that this rank had not used
  std::uint64_t evictions = 0;
  std::uint64_t evicted_unused = 0;    ///< dropped, by a step end too, before any use
  std::uint64_t releases_ignored = 0;  ///< ends without a begin

  ScheduleCounters& operator+=(const ScheduleCounters& other) {
    uses += other.uses;
    hits += other.hits;
    prefetch_hits += other.prefetch_hits;
    misses += other.misses;
    gathers += other.gathers;
    regathers += other.regathers;
    reduces += other.reduces;
    zero_reduces += other.zero_reduces;
    evictions += other.evictions;
    evicted_unused += other.evicted_unused;
    releases_ignored += other.releases_ignored;
    return *this;
  }
};

class Schedule {
 public:
  explicit Schedule(SchedulePlan plan);

  // Events, in the trainer's program order. Each replaces `decisions()`.

  /// `reduces` false: what it contributes stays, see [Note: accumulation]; refused if the plan does
  /// not allow it.
  Result<void> begin_micro_batch(bool reduces = true);
  /// Reduces what is left, in plan order or the agreed one, if it reduces at all. Refused while a
  /// use of this micro-batch is open.
  Result<void> end_micro_batch();
  /// `backward` false: a forward, or a recomputation if this micro-batch has begun a backward.
  /// Inside eval only forwards. On success `used()` describes the unit's buckets.
  Result<void> begin(UnitId unit, bool backward);
  /// Ends the latest open use of that unit and direction (inside eval: of those begun in it).
  /// Without one: counted and ignored.
  Result<void> end(UnitId unit, bool backward);
  Result<void> begin_eval();
  /// Evicts what eval gathered and never used. Refused while a use of eval is open.
  Result<void> end_eval();
  /// Gradients are complete: reduces what micro-batches have left, evicts all, marks all stale,
  /// takes the recorded order as the next one.
  Result<void> step_end();
  /// Parameters are about to change: gives back all slots (`step_end`), marks all stale; the order
  /// and the place in it are kept. Refused with an open use, a gradient being filled, or in eval;
  /// with an agreed order also behind the first backward of a micro-batch, and behind one that did
  /// not reduce.
  Result<void> begin_update();
  /// The parameters of `bucket` are up to date. (All are stale at construction.) `changed` false: a
  /// frozen bucket whose shards were not touched; if it was kept gathered, it still is.
  Result<void> updated(BucketId bucket, bool changed = true);
  /// Gives back all slots of buckets that are not in use. Refused if buckets keep their buffers.
  Result<void> reshard();

  // The agreed order. After the end of a step every rank adopts what rank 0 has recorded.

  /// What this rank has done in the last step, completed by the order in force.
  AgreedOrder recorded() const;
  /// `order` names each bucket once, as `SchedulePlan::first_order` does; checked by assertion. An
  /// event, too, that decides nothing.
  void adopt(AgreedOrder order);
  const AgreedOrder& agreed_order() const { return agreed_; }

  // What the last event led to.

  /// Empty after a refused event.
  const std::vector<Decision>& decisions() const { return decisions_; }
  /// After a successful `begin`: the unit's buckets in plan order.
  const std::vector<UsedBucket>& used() const { return used_; }

  // Tickets: one counter per device, lent to the schedule for each event.

  void set_next_ticket(Ticket ticket) { next_ticket_ = ticket; }
  Ticket next_ticket() const { return next_ticket_; }

  // Views for reports and tests.

  const SchedulePlan& plan() const { return plan_; }
  const ScheduleCounters& counters() const { return counters_; }
  bool held(BucketId bucket) const;
  bool stale(BucketId bucket) const;
  std::uint32_t open_uses(BucketId bucket) const;
  std::uint32_t open_use_count() const;  ///< uses begun and not ended, over all units
  std::uint32_t slots_in_use(std::uint32_t slot_class) const;
  std::uint32_t gradient_slots_in_use(std::uint32_t gradient_class) const;
  /// The order that predictions come from, cut into micro-batches.
  std::vector<std::vector<PredictedUse>> predicted(bool eval) const;

 private:
  /// One bucket: whether it is held, and its gradient. Held if it has a slot, filling if it has a
  /// gradient slot.
  struct BucketView {
    SlotId slot = no_slot;
    Ticket gather = 0;       ///< that filled the slot
    std::uint32_t uses = 0;  ///< open; > 0: pinned
    bool used = false;       ///< since its gather
    bool gathered_in_eval = false;
    bool stale = true;
    std::uint64_t released = 0;  ///< the event of the last release, or else of the gather
    std::size_t held_index = 0;  ///< in `SlotClassView::held`

    SlotId gradient_slot = no_slot;
    std::uint32_t backwards_open = 0;
    std::uint32_t forwards_begun = 0;   ///< in this micro-batch, without recomputations
    std::uint32_t backwards_ended = 0;  ///< in this micro-batch
    bool reduced_in_step = false;

    bool kept = false;  ///< its parts lie in the smaller group, of the version that is current

    // [Note: the agreed order]
    bool waiting = false;          ///< complete, its reduce is held back
    bool reduced = false;          ///< in this micro-batch
    bool gather_recorded = false;  ///< in this micro-batch
    bool reduce_recorded = false;  ///< in this micro-batch
    std::size_t gather_place = 0;  ///< in `agreed_.gathers`
  };

  /// The free slots of one class, first in, first out.
  class FreeSlots {
   public:
    explicit FreeSlots(const SchedulePlan::Class& slot_class);
    std::uint32_t count() const { return count_; }
    SlotId take();  ///< free for the longest time; `no_slot` if there is none
    void give_back(SlotId slot);

   private:
    std::vector<SlotId> ring_;
    std::size_t head_ = 0;
    std::uint32_t count_ = 0;
  };

  struct SlotClassView {
    FreeSlots free;
    std::vector<BucketId> held;
    std::uint32_t pinned = 0;  ///< of `held`
  };

  UseOrder& order() { return in_eval_ ? eval_ : train_; }
  const UseOrder& order() const { return in_eval_ ? eval_ : train_; }
  SlotClassView& class_of(BucketId bucket) { return classes_[plan_.slot_class[bucket]]; }
  bool trains(BucketId bucket) const {
    return plan_.gradient_class[bucket] != SchedulePlan::no_class;
  }
  std::uint32_t waiting_in(std::uint32_t gradient_class) const {
    return plan_.agreed ? waiting_[gradient_class] : 0;
  }
  std::size_t eval_opens() const { return in_eval_ ? open_before_eval_ : 0; }
  Pass pass_of(bool backward) const;
  std::size_t next_use(BucketId bucket) const;

  // Steps of events. What they tell buckets is appended to `decisions_`.
  void tell(Command command, BucketId bucket, SlotId slot, Ticket ticket = 0);
  bool make_room(BucketId bucket, std::optional<std::size_t> position);
  void gather(BucketId bucket);
  void pin(UsedBucket& used);
  void unpin(BucketId bucket);
  void contribute(UsedBucket& used);
  void take_gradient_slot(BucketId bucket);
  void reduce(BucketId bucket);
  void reduce_rest();
  void drop(BucketId bucket, Command command);
  void make_stale();
  void prefetch();

  // [Note: the agreed order], in schedule_agreed.cpp.
  void index_order();
  bool may_stay(BucketId bucket) const;
  void gather_in_order(std::size_t end);
  void gather_rest();
  void note_used(BucketId bucket);
  void note_complete(BucketId bucket);
  void no_longer_waits(BucketId bucket);
  void plan_reduces(bool all);
  void reduce_planned();
  void relieve(UnitId unit);
  void relieve_zeros();
  void end_reduces();
  void record_micro_batch();
  void finish_record();

  // Reasons to refuse an event, in schedule_refusals.cpp. They change nothing that is observable.
  std::optional<Failure> refuse_begin(UnitId unit, bool backward);
  std::optional<Failure> refuse_slots(UnitId unit, bool backward);
  std::optional<Failure> refuse_gradient_slots(UnitId unit);
  std::optional<Failure> refuse_agreed(UnitId unit, bool backward) const;
  std::optional<Failure> refuse_if_open(std::string_view event, std::size_t first) const;
  std::optional<Failure> refuse_update() const;
  std::string open_uses_of(std::uint32_t slot_class) const;
  std::string holders_of(std::uint32_t gradient_class) const;
  std::string use_text(PredictedUse use) const;
  std::string unit_text(UnitId unit) const;

  SchedulePlan plan_;
  std::vector<Decision> decisions_;
  std::vector<UsedBucket> used_;
  Ticket next_ticket_ = 1;
  ScheduleCounters counters_;

  UseOrder train_;
  UseOrder eval_;
  std::vector<BucketView> buckets_;
  std::vector<SlotClassView> classes_;
  std::vector<FreeSlots> gradient_classes_;
  std::vector<Ticket> last_reduce_;    ///< per gradient slot
  std::vector<PredictedUse> open_;     ///< begun and not ended, in order
  std::vector<std::uint32_t> wanted_;  ///< scratch per class, all 0 between events
  std::size_t open_before_eval_ = 0;   ///< of `open_`, those that eval does not see
  std::uint64_t event_ = 0;            ///< begins, ends and updates, for the age of releases
  std::uint32_t unused_count_ = 0;     ///< buckets held and not used since their gather
  std::uint32_t filling_count_ = 0;
  bool in_eval_ = false;
  bool in_micro_batch_ = false;
  bool in_backward_ = false;  ///< a backward has begun in this micro-batch
  bool reduces_ = true;       ///< this micro-batch does; true outside
  bool left_ = false;         ///< the last micro-batch of this step did not

  // [Note: the agreed order]
  AgreedOrder agreed_;
  AgreedOrder record_;                  ///< of this micro-batch: by first use, by first completion
  AgreedOrder step_record_;             ///< of the micro-batches before it, in one
  AgreedOrder finished_record_;         ///< of the last one, completed
  std::size_t next_gather_ = 0;         ///< in `agreed_.gathers`; all before it are held
  std::size_t reached_ = 0;             ///< behind the farthest place that a use has needed
  std::size_t next_reduce_ = 0;         ///< in `agreed_.reduces`; all before it are reduced
  std::vector<BucketId> planned_;       ///< reduces of this event
  std::vector<std::uint32_t> waiting_;  ///< per gradient class: buckets that wait
  std::uint32_t waiting_count_ = 0;     ///< … of all classes
  std::vector<std::uint32_t> unit_count_;  ///< per bucket: units that use it
};

}  // namespace troupe
