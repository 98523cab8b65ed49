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
};

SchedulePlan make_schedule_plan(const Model& model,
                                const BucketPlan& plan,
                                const MemoryPlan& memory);

/// What the scheduler has to tell a bucket.
enum class Command : std::uint8_t {
  gather,      ///< ticket, slot
  use,         ///< slot
  release,     ///< slot
  evict,       ///< slot
  contribute,  ///< slot: the gradient slot that this backward fills (once per reduce)
  reduce,      ///< ticket, slot: the gradient slot
  step_end,    ///< slot: parameters go stale, the slot is given back
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
  std::uint64_t gathers = 0;
  std::uint64_t reduces = 0;
  std::uint64_t evictions = 0;
  std::uint64_t evicted_unused = 0;    ///< dropped, by a step end too, before any use
  std::uint64_t releases_ignored = 0;  ///< ends without a begin
};

class Schedule {
 public:
  explicit Schedule(SchedulePlan plan);

  // Events, in the trainer's program order. Each replaces `decisions()`.

  Result<void> begin_micro_batch();
  /// Reduces what is left, in plan order. Refused while a use of this micro-batch is open.
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
  /// Gradients are complete: evicts all, marks all stale, takes the recorded order as the next one.
  Result<void> step_end();
  /// Parameters are about to change: gives back all slots (`step_end`), marks all stale; the order
  /// and the place in it are kept. Refused with an open use, a gradient being filled, or in eval.
  Result<void> begin_update();
  /// The parameters of `bucket` are up to date. (All are stale at construction.)
  Result<void> updated(BucketId bucket);

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
  void reduce(BucketId bucket);
  void drop(BucketId bucket, Command command);
  void drop_all();
  void prefetch();

  // Reasons to refuse an event, in schedule_refusals.cpp. They change nothing that is observable.
  std::optional<Failure> refuse_begin(UnitId unit, bool backward);
  std::optional<Failure> refuse_slots(UnitId unit, bool backward);
  std::optional<Failure> refuse_gradient_slots(UnitId unit);
  std::optional<Failure> refuse_if_open(std::string_view event, std::size_t first) const;
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
};

}  // namespace troupe
