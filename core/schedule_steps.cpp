// What the events of the schedule consist of: rooms, gathers, pins, reduces, prefetches.
#include "troupe/core/schedule.hpp"

#include <algorithm>

namespace troupe {

Pass Schedule::pass_of(bool backward) const {
  if (backward) {
    return Pass::backward;
  }
  return in_backward_ && !in_eval_ ? Pass::recompute : Pass::forward;
}

/// The predicted next use: a position in the order of the phase or, beyond eval, in the interrupted
/// train order behind it (rule 10).
std::size_t Schedule::next_use(BucketId bucket) const {
  const std::size_t position = order().next_position(bucket);
  if (position != UseOrder::nowhere || !in_eval_ || train_.cursor() == 0) {
    return position;
  }
  const std::size_t interrupted = train_.next_position(bucket);
  return interrupted == UseOrder::nowhere ? UseOrder::nowhere : eval_.size() + interrupted;
}

void Schedule::tell(Command command, BucketId bucket, SlotId slot, Ticket ticket) {
  decisions_.push_back({.command = command, .bucket = bucket, .slot = slot, .ticket = ticket});
}

/// Makes sure that there is a free slot for `bucket`; false if that cannot be (rules 4 to 6).
/// position    a prefetch for that position: evicts only what is used later (do no harm);
///             nothing: a demand, that evicts whatever is not pinned
bool Schedule::make_room(BucketId bucket, std::optional<std::size_t> position) {
  const SlotClassView& slot_class = class_of(bucket);
  if (slot_class.free.count() > 0) {
    return true;
  }
  BucketId victim = no_bucket;
  std::size_t victim_next = 0;
  for (const BucketId candidate : slot_class.held) {
    if (buckets_[candidate].uses > 0) {
      continue;
    }
    const std::size_t next = next_use(candidate);
    const auto precedes = [&] {
      if (next != victim_next) {
        return next > victim_next;
      }
      const std::uint64_t released = buckets_[candidate].released;
      const std::uint64_t victim_released = buckets_[victim].released;
      return released != victim_released ? released < victim_released : candidate < victim;
    };
    if (victim == no_bucket || precedes()) {
      victim = candidate;
      victim_next = next;
    }
  }
  if (victim == no_bucket || (position && victim_next <= *position)) {
    return false;
  }
  drop(victim, Command::evict);
  return true;
}

void Schedule::gather(BucketId bucket) {
  BucketView& view = buckets_[bucket];
  SlotClassView& slot_class = class_of(bucket);
  view.slot = slot_class.free.take();
  view.gather = next_ticket_++;
  view.used = false;
  view.gathered_in_eval = in_eval_;
  view.released = event_;
  view.held_index = slot_class.held.size();
  slot_class.held.push_back(bucket);
  ++unused_count_;
  ++counters_.gathers;
  const bool again = view.kept;
  counters_.regathers += again ? 1U : 0U;
  view.kept = !plan_.regathers.empty() && plan_.regathers[bucket];
  tell(again ? Command::regather : Command::gather, bucket, view.slot, view.gather);
}

void Schedule::pin(UsedBucket& used) {
  BucketView& view = buckets_[used.bucket];
  ++counters_.uses;
  ++(used.hit ? counters_.hits : counters_.misses);
  if (!view.used) {
    counters_.prefetch_hits += used.hit ? 1U : 0U;
    view.used = true;
    --unused_count_;
  }
  if (view.uses == 0) {
    ++class_of(used.bucket).pinned;
  }
  ++view.uses;
  used.slot = view.slot;
  used.gather = view.gather;
  tell(Command::use, used.bucket, view.slot);
}

void Schedule::unpin(BucketId bucket) {
  BucketView& view = buckets_[bucket];
  --view.uses;
  if (view.uses == 0) {
    --class_of(bucket).pinned;
  }
  view.released = event_;
  tell(Command::release, bucket, view.slot);
}

void Schedule::contribute(UsedBucket& used) {
  if (!trains(used.bucket)) {
    return;
  }
  BucketView& view = buckets_[used.bucket];
  no_longer_waits(used.bucket);
  if (view.gradient_slot == no_slot) {
    take_gradient_slot(used.bucket);
    used.first_contribution = true;
  }
  used.gradient_slot = view.gradient_slot;
  used.previous_reduce = last_reduce_[view.gradient_slot];
}

void Schedule::take_gradient_slot(BucketId bucket) {
  BucketView& view = buckets_[bucket];
  view.gradient_slot = gradient_classes_[plan_.gradient_class[bucket]].take();
  ++filling_count_;
  tell(Command::contribute, bucket, view.gradient_slot);
}

void Schedule::reduce(BucketId bucket) {
  BucketView& view = buckets_[bucket];
  const Ticket ticket = next_ticket_++;
  next_ticket_ += plan_.replica_sum == ReplicaSum::every_reduce ? 1U : 0U;
  last_reduce_[view.gradient_slot] = next_ticket_ - 1;
  gradient_classes_[plan_.gradient_class[bucket]].give_back(view.gradient_slot);
  tell(Command::reduce, bucket, view.gradient_slot, ticket);
  view.gradient_slot = no_slot;
  view.reduced_in_step = true;
  view.reduced = true;
  no_longer_waits(bucket);
  --filling_count_;
  ++counters_.reduces;
}

/// What is left: under an agreed order every trainable bucket that is not reduced yet, else what
/// is being filled, in plan order.
void Schedule::reduce_rest() {
  if (plan_.agreed) {
    relieve_zeros();
    plan_reduces(true);
    reduce_planned();
    end_reduces();
    return;
  }
  for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (buckets_[bucket].gradient_slot != no_slot) {
      reduce(bucket);
    }
  }
}

void Schedule::drop(BucketId bucket, Command command) {
  BucketView& view = buckets_[bucket];
  SlotClassView& slot_class = class_of(bucket);
  const BucketId last = slot_class.held.back();
  slot_class.held[view.held_index] = last;
  buckets_[last].held_index = view.held_index;
  slot_class.held.pop_back();
  slot_class.free.give_back(view.slot);
  train_.dropped(bucket);
  eval_.dropped(bucket);
  if (!view.used) {
    --unused_count_;
    ++counters_.evicted_unused;
  }
  counters_.evictions += command == Command::evict ? 1U : 0U;
  tell(command, bucket, view.slot);
  view.slot = no_slot;
}

void Schedule::make_stale() {
  for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (held(bucket) && !may_stay(bucket)) {
      drop(bucket, Command::step_end);
    }
    buckets_[bucket].stale = true;
    buckets_[bucket].kept = false;
  }
  next_gather_ = 0;
  reached_ = 0;
}

/// Rule 6: walks on from the scan, and never passes over a bucket that does not fit.
void Schedule::prefetch() {
  const auto depth = static_cast<std::uint32_t>(std::max(plan_.prefetch_depth, 0));
  if (plan_.agreed) {
    gather_in_order(reached_ + depth);
    return;
  }
  if (depth == 0) {
    return;
  }
  for (std::size_t position = order().scan(); position < order().size(); ++position) {
    for (const BucketId bucket : plan_.unit_buckets[order().at(position).unit]) {
      if (held(bucket)) {
        continue;
      }
      if (buckets_[bucket].stale || unused_count_ >= depth || !make_room(bucket, position)) {
        order().set_scan(position);
        return;
      }
      gather(bucket);
    }
  }
  order().set_scan(order().size());
}

// Views.

bool Schedule::held(BucketId bucket) const {
  return buckets_[bucket].slot != no_slot;
}
bool Schedule::stale(BucketId bucket) const {
  return buckets_[bucket].stale;
}
std::uint32_t Schedule::open_uses(BucketId bucket) const {
  return buckets_[bucket].uses;
}
std::uint32_t Schedule::open_use_count() const {
  return static_cast<std::uint32_t>(open_.size());
}

std::uint32_t Schedule::slots_in_use(std::uint32_t slot_class) const {
  return static_cast<std::uint32_t>(classes_[slot_class].held.size());
}

std::uint32_t Schedule::gradient_slots_in_use(std::uint32_t gradient_class) const {
  return plan_.gradient_classes[gradient_class].count - gradient_classes_[gradient_class].count();
}

std::vector<std::vector<PredictedUse>> Schedule::predicted(bool eval) const {
  return (eval ? eval_ : train_).segments();
}

}  // namespace troupe
