#include "schedule_ledger.hpp"

#include "schedule_fixture.hpp"

#include <algorithm>
#include <utility>

namespace troupe::testing {

Ledger::Ledger(const SchedulePlan& plan)
    : plan_(plan), order_(plan.first_order), entries_(plan.slot_class.size()) {
  for (const SchedulePlan::Class& limit : plan.gradient_classes) {
    last_reduce_.resize(last_reduce_.size() + limit.count);
  }
}

bool Ledger::uses(UnitId unit, BucketId bucket) const {
  return std::ranges::find(buckets_of(unit), bucket) != buckets_of(unit).end();
}

std::uint32_t Ledger::open_uses(BucketId bucket, bool backward_only) const {
  return static_cast<std::uint32_t>(std::ranges::count_if(open_, [&](const OpenUse& open) {
    return uses(open.unit, bucket) && (open.backward || !backward_only);
  }));
}

/// Its gradient lacks nothing in this micro-batch.
bool Ledger::complete(BucketId bucket) const {
  const Entry& entry = entries_[bucket];
  return entry.gradient_slot != no_slot && entry.backwards > 0 &&
         entry.backwards >= entry.forwards && open_uses(bucket, true) == 0;
}

std::uint32_t Ledger::opens_in_phase() const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(open_, [&](const OpenUse& open) { return open.in_eval || !in_eval_; }));
}

bool Ledger::fits(UnitId unit, bool backward) const {
  if (plan_.agreed && !fits_order(unit, backward)) {
    return false;
  }
  std::vector<std::uint32_t> pinned(plan_.slot_classes.size());
  std::vector<std::uint32_t> filling(plan_.gradient_classes.size());
  for (BucketId bucket = 0; bucket < entries_.size(); ++bucket) {
    const bool own = uses(unit, bucket);
    if (own && entries_[bucket].stale) {
      return false;
    }
    pinned[plan_.slot_class[bucket]] += own || open_uses(bucket, false) > 0 ? 1U : 0U;
    if (trains(bucket)) {
      const bool gives_way = plan_.agreed && complete(bucket);
      const bool fills = entries_[bucket].gradient_slot != no_slot && !gives_way;
      filling[plan_.gradient_class[bucket]] += fills || (own && backward) ? 1U : 0U;
    }
  }
  // Classes that the unit has nothing in are not exceeded: they were not before.
  for (std::size_t i = 0; i < pinned.size(); ++i) {
    if (pinned[i] > plan_.slot_classes[i].count) {
      return false;
    }
  }
  for (std::size_t i = 0; i < filling.size(); ++i) {
    if (filling[i] > plan_.gradient_classes[i].count) {
      return false;
    }
  }
  return true;
}

bool Ledger::possible(const Event& event) const {
  const bool filling = std::ranges::any_of(
      entries_, [](const Entry& entry) { return entry.gradient_slot != no_slot; });
  switch (event.kind) {
    case EventKind::begin_micro_batch:
      return !in_eval_ && !in_micro_batch_ && (event.reduces || plan_.accumulates);
    case EventKind::end_micro_batch:
      return !in_eval_ && in_micro_batch_ && open_.empty();
    case EventKind::begin_forward:
      return (in_eval_ || in_micro_batch_) && fits(event.id, false);
    case EventKind::begin_backward:
      return !in_eval_ && in_micro_batch_ && fits(event.id, true);
    case EventKind::begin_eval:
      return !in_eval_;
    case EventKind::end_eval:
      return in_eval_ && opens_in_phase() == 0;
    case EventKind::step_end:
      return !in_eval_ && !in_micro_batch_ && open_.empty();
    case EventKind::begin_update:
      return !in_eval_ && open_.empty() && !filling && !(plan_.agreed && (in_backward_ || left_));
    case EventKind::end_forward:
    case EventKind::end_backward:
    case EventKind::updated:
    case EventKind::adopt:
      return true;
    case EventKind::reshard:
      return !plan_.agreed;
  }
  return false;
}

void Ledger::enter_call(const Event& event) {
  const bool backward =
      event.kind == EventKind::begin_backward || event.kind == EventKind::end_backward;
  if (begins_use(event)) {
    open_.push_back({event.id, backward, in_eval_});
    in_backward_ = in_backward_ || backward;
    for (const BucketId bucket : buckets_of(event.id)) {
      entries_[bucket].forwards += !in_eval_ && !in_backward_ ? 1U : 0U;
    }
  } else if (ends_use(event)) {
    std::size_t behind = open_.size();  // of the latest that fits, one more than its index
    while (behind > 0 && open_[behind - 1] != OpenUse{event.id, backward, in_eval_}) {
      --behind;
    }
    if (behind > 0) {
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(behind - 1));
      for (const BucketId bucket : buckets_of(event.id)) {
        entries_[bucket].backwards += backward ? 1U : 0U;
      }
    }
  } else if (event.kind == EventKind::begin_eval || event.kind == EventKind::end_eval) {
    in_eval_ = event.kind == EventKind::begin_eval;
  } else if (event.kind == EventKind::begin_micro_batch) {
    in_micro_batch_ = true;
    reduces_ = event.reduces;
  } else if (event.kind == EventKind::end_micro_batch) {
    in_micro_batch_ = false;
    in_backward_ = false;
  } else if (event.kind == EventKind::updated) {
    entries_[event.id].stale = false;
  }
}

std::string Ledger::check_begin(const Event& event, const Schedule& schedule) const {
  const std::vector<BucketId>& buckets = buckets_of(event.id);
  if (schedule.used().size() != buckets.size()) {
    return "a begin describes all buckets of its unit";
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Entry& entry = entries_[buckets[i]];
    const UsedBucket& used = schedule.used()[i];
    if (entry.slot == no_slot || entry.told_uses != open_uses(buckets[i], false)) {
      return "after a begin every bucket of the unit is held and was told of the use";
    }
    const bool taken = std::ranges::any_of(schedule.decisions(), [&](const Decision& decision) {
      return decision.command == Command::contribute && decision.bucket == buckets[i];
    });
    const bool fills = event.kind == EventKind::begin_backward && trains(buckets[i]);
    const SlotId gradient_slot = fills ? entry.gradient_slot : no_slot;
    if (used.bucket != buckets[i] || used.slot != entry.slot || used.gather != entry.gather ||
        used.gradient_slot != gradient_slot || (fills && gradient_slot == no_slot) ||
        used.first_contribution != taken ||
        used.previous_reduce != (fills ? last_reduce_[gradient_slot] : 0)) {
      return "a begin describes slot, gather and gradient as they are";
    }
  }
  return {};
}

std::string Ledger::check_reduces(const Event& event, const std::vector<BucketId>& reduced) const {
  for (BucketId bucket = 0; bucket < entries_.size(); ++bucket) {
    const Entry& entry = entries_[bucket];
    const bool now = std::ranges::find(reduced, bucket) != reduced.end();
    const bool was_filling = now || entry.gradient_slot != no_slot;
    const bool lacks_nothing = entry.backwards >= entry.forwards && open_uses(bucket, true) == 0;
    const bool ended = event.kind == EventKind::end_backward && uses(event.id, bucket);
    const bool due = event.kind == EventKind::end_micro_batch || (ended && lacks_nothing);
    if (now != (was_filling && ((due && reduces_) || event.kind == EventKind::step_end))) {
      return now ? "a bucket reduces when its backwards are complete, not before"
                 : "a bucket whose backwards are complete reduces";
    }
  }
  return {};
}

std::string Ledger::enter(const Event& event, const Schedule& schedule) {
  const std::size_t open_before = open_.size();
  const bool kept = event.kind == EventKind::updated && entries_[event.id].stale &&
                    entries_[event.id].slot != no_slot;
  enter_call(event);
  const bool stray = ends_use(event) && open_.size() == open_before;
  if (stray && !schedule.decisions().empty()) {
    return "an end without a begin decides nothing";
  }
  std::vector<BucketId> reduced;
  for (const Decision& decision : schedule.decisions()) {
    if (std::string violated = enter_decision(event, decision); !violated.empty()) {
      return violated + " (" + std::string(to_string(decision.command)) + " " +
             std::to_string(decision.bucket) + ")";
    }
    if (decision.command == Command::reduce) {
      reduced.push_back(decision.bucket);
    }
  }
  if (kept && event.changed &&
      (schedule.decisions().empty() || schedule.decisions()[0].command != Command::step_end)) {
    return "what has changed is given back before anything else";
  }
  if (std::string violated = stray          ? ""
                             : plan_.agreed ? check_reduced(event)
                                            : check_reduces(event, reduced);
      !violated.empty()) {
    return violated;
  }
  if (begins_use(event)) {
    if (std::string violated = check_begin(event, schedule); !violated.empty()) {
      return violated;
    }
  }
  if (event.kind == EventKind::adopt) {
    order_ = schedule.agreed_order();
  }
  return check_end(event);
}

/// What must hold after every event, and what ends with it.
std::string Ledger::check_end(const Event& event) {
  const auto held_unused = std::ranges::count_if(
      entries_, [](const Entry& entry) { return entry.slot != no_slot && !entry.used; });
  if (!plan_.agreed && held_unused > plan_.prefetch_depth) {
    return "no more than prefetch_depth buckets are held and unused";
  }
  for (BucketId bucket = 0; bucket < entries_.size(); ++bucket) {
    Entry& entry = entries_[bucket];
    const bool held = entry.slot != no_slot || entry.state != BucketState::sharded;
    if (event.kind == EventKind::reshard && held && open_uses(bucket, false) == 0) {
      return "after a reshard nothing is held but what is in use";
    }
    if (event.kind == EventKind::end_micro_batch) {
      entry.forwards = 0;
      entry.backwards = 0;
      entry.reduced = false;
    }
    if (event.kind == EventKind::step_end) {
      entry.reduced = false;
      if (entry.gradient_slot != no_slot) {
        return "no gradient outlives its step";
      }
    }
    if (event.kind == EventKind::step_end || event.kind == EventKind::begin_update) {
      entry.stale = true;
      entry.gathered_in_version = false;
      if (held && (!plan_.agreed || trains(bucket))) {
        return "after a step end nothing is held but what may stay";
      }
    }
    if (event.kind == EventKind::step_end && plan_.replica_sum == ReplicaSum::at_step_end &&
        entry.reduced_in_step) {
      return "at the end of a step all that was reduced is summed";
    }
    entry.reduced_in_step = entry.reduced_in_step && event.kind != EventKind::step_end;
  }
  if (event.kind == EventKind::end_micro_batch) {
    left_ = !std::exchange(reduces_, true);
  }
  left_ = left_ && event.kind != EventKind::step_end;
  return {};
}

std::string Ledger::compare_views(const Schedule& schedule) const {
  std::vector<std::uint32_t> slots(plan_.slot_classes.size());
  std::vector<std::uint32_t> gradient_slots(plan_.gradient_classes.size());
  for (BucketId bucket = 0; bucket < entries_.size(); ++bucket) {
    const Entry& entry = entries_[bucket];
    slots[plan_.slot_class[bucket]] += entry.slot != no_slot ? 1U : 0U;
    if (entry.gradient_slot != no_slot) {
      ++gradient_slots[plan_.gradient_class[bucket]];
    }
    if (schedule.held(bucket) != (entry.slot != no_slot) ||
        schedule.held(bucket) != holds_full_buffer(entry.state) ||
        schedule.stale(bucket) != entry.stale ||
        schedule.open_uses(bucket) != open_uses(bucket, false)) {
      return "the views of a bucket are what the decisions say";
    }
  }
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    if (schedule.slots_in_use(i) != slots[i]) {
      return "the slots in use are those that the decisions gave";
    }
  }
  for (std::uint32_t i = 0; i < gradient_slots.size(); ++i) {
    if (schedule.gradient_slots_in_use(i) != gradient_slots[i]) {
      return "the gradient slots in use are those that the decisions gave";
    }
  }
  return schedule.open_use_count() == open_.size() ? "" : "the open uses are those that were begun";
}

}  // namespace troupe::testing
