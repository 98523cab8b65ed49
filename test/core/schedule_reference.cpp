#include "schedule_reference.hpp"

#include <algorithm>
#include <utility>

namespace troupe::testing {

namespace {

constexpr std::size_t never = ~std::size_t{0};

std::vector<std::deque<SlotId>> all_free(const std::vector<SchedulePlan::Class>& limits) {
  std::vector<std::deque<SlotId>> free;
  for (const SchedulePlan::Class& limit : limits) {
    std::deque<SlotId> slots;
    for (std::uint32_t i = 0; i < limit.count; ++i) {
      slots.push_back(limit.first + i);
    }
    free.push_back(std::move(slots));
  }
  return free;
}

}  // namespace

ReferenceSchedule::ReferenceSchedule(const SchedulePlan& plan)
    : plan_(plan),
      free_(all_free(plan.slot_classes)),
      free_gradient_(all_free(plan.gradient_classes)),
      stale_(plan.slot_class.size(), true) {
  if (plan.agreed) {
    agreed_.emplace(plan);
  }
  // Rule 1.
  Uses forwards;
  for (UnitId unit = 0; unit < plan.unit_buckets.size(); ++unit) {
    forwards.push_back({unit, Pass::forward});
  }
  Uses both = forwards;
  for (std::size_t i = forwards.size(); i > 0; --i) {
    both.push_back({forwards[i - 1].unit, Pass::backward});
  }
  train_.order = {both};
  eval_.order = {forwards};
  train_.record.emplace_back();
  eval_.record.emplace_back();
}

ReferenceSchedule::Uses ReferenceSchedule::flat(const Phase& phase) {
  Uses uses;
  for (const Uses& segment : phase.order) {
    uses.insert(uses.end(), segment.begin(), segment.end());
  }
  return uses;
}

std::size_t ReferenceSchedule::start_of(const Phase& phase, std::size_t segment) {
  std::size_t start = 0;
  for (std::size_t i = 0; i < segment; ++i) {
    start += phase.order[i].size();
  }
  return start;
}

/// The order becomes what was recorded, if anything was; the cursor goes to the start.
void ReferenceSchedule::restart(Phase& phase) {
  std::erase_if(phase.record, [](const Uses& segment) { return segment.empty(); });
  if (!phase.record.empty()) {
    phase.order = phase.record;
  }
  phase.record = {{}};
  phase.segment = 0;
  phase.cursor = 0;
}

bool ReferenceSchedule::uses(UnitId unit, BucketId bucket) const {
  return std::ranges::find(plan_.unit_buckets[unit], bucket) != plan_.unit_buckets[unit].end();
}

bool ReferenceSchedule::pinned(BucketId bucket) const {
  return std::ranges::any_of(open_,
                             [&](const OpenUse& open) { return uses(open.use.unit, bucket); });
}

std::optional<std::size_t> ReferenceSchedule::position_in(const Phase& phase,
                                                          BucketId bucket) const {
  std::size_t position = 0;
  for (const Uses& segment : phase.order) {
    for (const PredictedUse& use : segment) {
      if (position >= phase.cursor && uses(use.unit, bucket)) {
        return position;
      }
      ++position;
    }
  }
  return std::nullopt;
}

/// Rule 10 included.
std::size_t ReferenceSchedule::next_use(BucketId bucket) {
  if (const auto position = position_in(phase(), bucket)) {
    return *position;
  }
  if (in_eval_ && train_.cursor > 0) {
    if (const auto position = position_in(train_, bucket)) {
      return start_of(eval_, eval_.order.size()) + *position;
    }
  }
  return never;
}

bool ReferenceSchedule::has_room(BucketId bucket) const {
  return !free_[plan_.slot_class[bucket]].empty();
}

/// Rule 4: the first choice of an eviction for `bucket`.
std::optional<BucketId> ReferenceSchedule::victim_for(BucketId bucket) {
  std::optional<BucketId> victim;
  for (const auto& [candidate, held] : held_) {  // ascending, so that the lowest of equals stays
    if (plan_.slot_class[candidate] != plan_.slot_class[bucket] || pinned(candidate)) {
      continue;
    }
    if (!victim || next_use(candidate) > next_use(*victim) ||
        (next_use(candidate) == next_use(*victim) && held.last < held_[*victim].last)) {
      victim = candidate;
    }
  }
  return victim;
}

void ReferenceSchedule::tell(Command command, BucketId bucket, SlotId slot, Ticket ticket) {
  told_.push_back({command, bucket, slot, ticket});
}

void ReferenceSchedule::give_back(BucketId bucket, Command command) {
  const SlotId slot = held_[bucket].slot;
  tell(command, bucket, slot);
  held_.erase(bucket);
  free_[plan_.slot_class[bucket]].push_back(slot);
}

void ReferenceSchedule::give_back_all() {
  while (!held_.empty()) {
    give_back(held_.begin()->first, Command::step_end);
  }
  stale_.assign(stale_.size(), true);
  gathered_.clear();
}

void ReferenceSchedule::gather(BucketId bucket) {
  auto& free = free_[plan_.slot_class[bucket]];
  const SlotId slot = free.front();
  free.pop_front();
  held_[bucket] = {slot, false, in_eval_, event_};
  const bool again =
      !plan_.regathers.empty() && plan_.regathers[bucket] && gathered_.contains(bucket);
  gathered_.insert(bucket);
  tell(again ? Command::regather : Command::gather, bucket, slot, next_ticket_++);
}

void ReferenceSchedule::reduce(BucketId bucket) {
  const SlotId slot = filling_[bucket];
  tell(Command::reduce, bucket, slot, next_ticket_);
  next_ticket_ += plan_.replica_sum == ReplicaSum::every_reduce ? 2U : 1U;
  reduced_in_step_.insert(bucket);
  filling_.erase(bucket);
  free_gradient_[plan_.gradient_class[bucket]].push_back(slot);
}

/// Rule 6.
void ReferenceSchedule::prefetch() {
  const Uses uses = flat(phase());
  for (std::size_t position = phase().cursor; position < uses.size(); ++position) {
    for (const BucketId bucket : plan_.unit_buckets[uses[position].unit]) {
      if (held_.contains(bucket)) {
        continue;
      }
      const auto unused =
          std::ranges::count_if(held_, [](const auto& entry) { return !entry.second.used; });
      if (stale_[bucket] || unused >= plan_.prefetch_depth) {
        return;
      }
      if (!has_room(bucket)) {
        const auto victim = victim_for(bucket);
        if (!victim || next_use(*victim) <= position) {
          return;
        }
        give_back(*victim, Command::evict);
      }
      gather(bucket);
    }
  }
}

/// Rule 2.
void ReferenceSchedule::seek(PredictedUse use) {
  Phase& now = phase();
  const Uses uses = flat(now);
  const std::size_t end = start_of(now, now.segment + 1);
  for (std::size_t position = now.cursor; position < end; ++position) {
    if (uses[position] == use) {
      now.cursor = position + 1;
      return;
    }
  }
}

/// Rule 3.
void ReferenceSchedule::begin(UnitId unit, bool backward) {
  const bool recomputes =
      std::ranges::any_of(begun_, [](PredictedUse use) { return use.pass == Pass::backward; });
  PredictedUse use{unit, backward ? Pass::backward : Pass::forward};
  if (!backward && !in_eval_ && recomputes) {
    use.pass = Pass::recompute;
  }
  seek(use);
  phase().record.back().push_back(use);
  open_.push_back({use, in_eval_});
  if (!in_eval_) {
    begun_.push_back(use);
  }
  const auto pin = [&](BucketId bucket) {
    held_[bucket].used = true;
    tell(Command::use, bucket, held_[bucket].slot);
  };
  std::vector<BucketId> absent;
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    if (held_.contains(bucket)) {
      pin(bucket);
    } else {
      absent.push_back(bucket);
    }
  }
  for (const BucketId bucket : absent) {
    if (!has_room(bucket)) {
      give_back(victim_for(bucket).value_or(no_bucket), Command::evict);  // rule 5
    }
    gather(bucket);
    pin(bucket);
  }
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    const std::uint32_t gradient_class = plan_.gradient_class[bucket];
    if (backward && gradient_class != SchedulePlan::no_class && !filling_.contains(bucket)) {
      filling_[bucket] = free_gradient_[gradient_class].front();
      free_gradient_[gradient_class].pop_front();
      tell(Command::contribute, bucket, filling_[bucket]);
    }
  }
  prefetch();
}

/// Rule 7.
void ReferenceSchedule::end(UnitId unit, bool backward) {
  const auto fits = [&](const OpenUse& open) {
    return open.use.unit == unit && (open.use.pass == Pass::backward) == backward &&
           open.in_eval == in_eval_;
  };
  if (std::ranges::none_of(open_, fits)) {
    return;
  }
  std::size_t latest = open_.size() - 1;
  while (!fits(open_[latest])) {
    --latest;
  }
  if (!in_eval_) {
    ended_.push_back(open_[latest].use);
  }
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(latest));
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    held_[bucket].last = event_;
    tell(Command::release, bucket, held_[bucket].slot);
  }
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    const auto of_bucket = [&](Pass pass) {
      return [this, bucket, pass](PredictedUse use) {
        return use.pass == pass && uses(use.unit, bucket);
      };
    };
    const auto forwards = std::ranges::count_if(begun_, of_bucket(Pass::forward));
    const auto backwards_begun = std::ranges::count_if(begun_, of_bucket(Pass::backward));
    const auto backwards = std::ranges::count_if(ended_, of_bucket(Pass::backward));
    if (reduces_ && backward && filling_.contains(bucket) && backwards == backwards_begun &&
        backwards >= forwards) {
      reduce(bucket);
    }
  }
  prefetch();
}

void ReferenceSchedule::end_eval() {
  for (BucketId bucket = 0; bucket < stale_.size(); ++bucket) {
    if (held_.contains(bucket) && held_[bucket].in_eval && !held_[bucket].used) {
      give_back(bucket, Command::evict);
    }
  }
  restart(eval_);
  in_eval_ = false;
}

void ReferenceSchedule::reduce_all() {
  while (!filling_.empty()) {
    reduce(filling_.begin()->first);
  }
}

void ReferenceSchedule::end_micro_batch() {
  if (reduces_) {
    reduce_all();
  }
  begun_.clear();
  ended_.clear();
  if (!train_.record.back().empty()) {
    train_.record.emplace_back();
  }
}

void ReferenceSchedule::sum_replicas() {
  for (const BucketId bucket : reduced_in_step_) {  // ascending
    if (plan_.replica_sum == ReplicaSum::at_step_end) {
      tell(Command::sum_replicas, bucket, no_slot, next_ticket_++);
    }
  }
  reduced_in_step_.clear();
}

void ReferenceSchedule::reshard() {
  for (BucketId bucket = 0; bucket < stale_.size(); ++bucket) {
    if (held_.contains(bucket) && !pinned(bucket)) {
      give_back(bucket, Command::evict);
    }
  }
}

void ReferenceSchedule::adopt(AgreedOrder order) {
  if (agreed_) {
    agreed_->adopt(std::move(order));
  }
}

std::vector<Decision> ReferenceSchedule::decide(const Event& event) {
  if (agreed_) {
    return agreed_->decide(event);
  }
  told_.clear();
  ++event_;
  switch (event.kind) {
    case EventKind::begin_micro_batch:
      reduces_ = event.reduces;
      train_.segment = std::min(train_.record.size() - 1, train_.order.size() - 1);
      train_.cursor = start_of(train_, train_.segment);
      break;
    case EventKind::end_micro_batch:
      end_micro_batch();
      break;
    case EventKind::begin_forward:
    case EventKind::begin_backward:
      begin(event.id, event.kind == EventKind::begin_backward);
      break;
    case EventKind::end_forward:
    case EventKind::end_backward:
      end(event.id, event.kind == EventKind::end_backward);
      break;
    case EventKind::begin_eval:
      in_eval_ = true;
      break;
    case EventKind::end_eval:
      end_eval();
      break;
    case EventKind::step_end:  // rule 8
      reduce_all();
      sum_replicas();
      give_back_all();
      restart(train_);
      break;
    case EventKind::begin_update:
      give_back_all();
      break;
    case EventKind::updated:  // rule 9
      stale_[event.id] = false;
      prefetch();
      break;
    case EventKind::reshard:
      reshard();
      break;
    case EventKind::adopt:
      break;
  }
  return told_;
}

}  // namespace troupe::testing
