#include "troupe/core/schedule.hpp"

#include "troupe/core/text.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

Failure misuse(std::string text) {
  return detail::failure(ErrorCode::misuse, std::move(text));
}

/// Registration order, forward and, when training, backward through it: rule 1.
std::vector<PredictedUse> registration_order(std::size_t unit_count, bool with_backward) {
  std::vector<PredictedUse> uses;
  uses.reserve(2 * unit_count);
  for (std::size_t unit = 0; unit < unit_count; ++unit) {
    uses.push_back({static_cast<UnitId>(unit), Pass::forward});
  }
  for (std::size_t unit = unit_count; with_backward && unit > 0; --unit) {
    uses.push_back({static_cast<UnitId>(unit - 1), Pass::backward});
  }
  return uses;
}

/// What the plan can say of the order in which buckets are used first, and complete: units in
/// registration order, those around others last in backward.
AgreedOrder first_order(const Model& model, const BucketPlan& plan) {
  const auto forward_place = [&](const Bucket& bucket) { return bucket.units.front(); };
  const auto backward_place = [&](const Bucket& bucket) {
    const bool of_root = std::ranges::find(bucket.units, model.root()) != bucket.units.end();
    return of_root ? 0 : bucket.units.front() + std::size_t{1};
  };
  std::vector<const Bucket*> buckets;
  buckets.reserve(plan.buckets.size());
  for (const Bucket& bucket : plan.buckets) {
    buckets.push_back(&bucket);
  }
  AgreedOrder order;
  std::ranges::stable_sort(buckets, {}, [&](const Bucket* each) { return forward_place(*each); });
  for (const Bucket* bucket : buckets) {
    order.gathers.push_back(bucket->id);
  }
  std::ranges::sort(buckets, {}, &Bucket::id);
  std::ranges::stable_sort(buckets, std::ranges::greater{},
                           [&](const Bucket* each) { return backward_place(*each); });
  for (const Bucket* bucket : buckets) {
    if (bucket->trainable) {
      order.reduces.push_back(bucket->id);
    }
  }
  return order;
}

}  // namespace

SchedulePlan make_schedule_plan(const Model& model,
                                const BucketPlan& plan,
                                const MemoryPlan& memory,
                                const ScheduleRules& rules) {
  const auto classes_of = [](const SlotPlan& slots) {
    std::vector<SchedulePlan::Class> classes;
    classes.reserve(slots.classes.size());
    for (const SlotClass& slot_class : slots.classes) {
      classes.push_back({slot_class.first, slot_class.count, slot_class.option});
    }
    return classes;
  };
  SchedulePlan result;
  result.unit_buckets = plan.unit_buckets;
  result.slot_class = memory.parameters.class_of;
  result.gradient_class = memory.gradients.class_of;
  result.slot_classes = classes_of(memory.parameters);
  result.gradient_classes = classes_of(memory.gradients);
  result.prefetch_depth = memory.prefetch_depth;
  result.unit_names = detail::names_of(model.units(), [](const Unit& unit) { return unit.name; });
  result.bucket_names = detail::names_of(
      plan.buckets, [&](const Bucket& bucket) { return plan.describe(bucket.id, model); });
  result.agreed = rules.agreed;
  if (rules.agreed) {
    result.first_order = first_order(model, plan);
  }
  if (rules.regather) {
    for (const Bucket& bucket : plan.buckets) {
      result.regathers.push_back(bucket.group.empty());
    }
  }
  result.replica_sum = rules.replica_sum;
  result.accumulates = rules.accumulates;
  return result;
}

Schedule::FreeSlots::FreeSlots(const SchedulePlan::Class& slot_class) : ring_(slot_class.count) {
  for (std::uint32_t i = 0; i < slot_class.count; ++i) {
    give_back(slot_class.first + i);
  }
}

SlotId Schedule::FreeSlots::take() {
  if (count_ == 0) {
    return no_slot;
  }
  const SlotId slot = ring_[head_];
  head_ = (head_ + 1) % ring_.size();
  --count_;
  return slot;
}

void Schedule::FreeSlots::give_back(SlotId slot) {
  ring_[(head_ + count_) % ring_.size()] = slot;
  ++count_;
}

Schedule::Schedule(SchedulePlan plan)
    : plan_(std::move(plan)),
      train_(registration_order(plan_.unit_buckets.size(), true),
             plan_.unit_buckets,
             plan_.slot_class.size()),
      eval_(registration_order(plan_.unit_buckets.size(), false),
            plan_.unit_buckets,
            plan_.slot_class.size()),
      buckets_(plan_.slot_class.size()) {
  for (const SchedulePlan::Class& slot_class : plan_.slot_classes) {
    classes_.push_back({FreeSlots(slot_class), {}, 0});
  }
  SlotId gradient_slot_count = 0;
  for (const SchedulePlan::Class& gradient_class : plan_.gradient_classes) {
    gradient_classes_.emplace_back(gradient_class);
    gradient_slot_count =
        std::max(gradient_slot_count, gradient_class.first + gradient_class.count);
  }
  last_reduce_.resize(gradient_slot_count);
  wanted_.resize(std::max(plan_.slot_classes.size(), plan_.gradient_classes.size()));
  if (plan_.agreed) {
    agreed_ = plan_.first_order;
    waiting_.resize(plan_.gradient_classes.size());
    unit_count_.resize(buckets_.size());
    for (const std::vector<BucketId>& of_unit : plan_.unit_buckets) {
      for (const BucketId bucket : of_unit) {
        ++unit_count_[bucket];
      }
    }
    index_order();
  }
}

// Events.

Result<void> Schedule::begin_micro_batch(bool reduces) {
  decisions_.clear();
  if (in_eval_ || in_micro_batch_) {
    return misuse(detail::concat("a micro-batch cannot begin inside ",
                                 in_eval_ ? "eval" : "another micro-batch"));
  }
  if (!reduces && !plan_.accumulates) {
    return misuse(
        "a micro-batch that does not reduce leaves its gradients in buffers that stay; that needs "
        "`free_full_gradients` = false");
  }
  in_micro_batch_ = true;
  reduces_ = reduces;
  train_.begin_segment();
  return {};
}

Result<void> Schedule::end_micro_batch() {
  decisions_.clear();
  if (in_eval_ || !in_micro_batch_) {
    return misuse(in_eval_ ? "a micro-batch cannot end inside eval"
                           : "the end of a micro-batch, but none has begun");
  }
  if (auto refused = refuse_if_open("the micro-batch cannot end", 0)) {
    return *std::move(refused);
  }
  if (plan_.agreed) {
    gather_rest();
  }
  if (reduces_) {
    reduce_rest();
  }
  if (plan_.agreed) {
    record_micro_batch();
  }
  for (BucketView& bucket : buckets_) {
    bucket.forwards_begun = 0;
    bucket.backwards_ended = 0;
  }
  train_.end_segment();
  in_micro_batch_ = false;
  in_backward_ = false;
  left_ = !reduces_;
  reduces_ = true;
  return {};
}

Result<void> Schedule::begin(UnitId unit, bool backward) {
  decisions_.clear();
  if (auto refused = refuse_begin(unit, backward)) {
    return *std::move(refused);
  }
  const PredictedUse use{unit, pass_of(backward)};
  ++event_;
  order().seek(use);
  order().record(use);
  open_.push_back(use);
  in_backward_ = in_backward_ || backward;

  used_.clear();
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    used_.push_back({.bucket = bucket, .hit = held(bucket)});
  }
  for (UsedBucket& used : used_) {
    if (used.hit) {
      pin(used);
    }
  }
  for (UsedBucket& used : used_) {
    if (!used.hit) {
      if (plan_.agreed) {
        gather_in_order(buckets_[used.bucket].gather_place + 1);  // nothing there is stale
      } else {
        make_room(used.bucket, std::nullopt);  // cannot fail: refuse_begin has counted
        gather(used.bucket);
      }
      pin(used);
    }
  }
  if (plan_.agreed && backward) {
    gather_rest();
    relieve(unit);
  }
  for (UsedBucket& used : used_) {
    if (plan_.agreed) {
      note_used(used.bucket);
    }
    if (backward) {
      ++buckets_[used.bucket].backwards_open;
      contribute(used);
    } else if (use.pass == Pass::forward && !in_eval_) {
      ++buckets_[used.bucket].forwards_begun;
    }
  }
  prefetch();
  return {};
}

Result<void> Schedule::end(UnitId unit, bool backward) {
  decisions_.clear();
  if (unit >= plan_.unit_buckets.size()) {
    return misuse(detail::concat("there is no ", unit_text(unit), " to end"));
  }
  std::size_t found = open_.size();
  while (found > eval_opens() &&
         (open_[found - 1].unit != unit || (open_[found - 1].pass == Pass::backward) != backward)) {
    --found;
  }
  if (found == eval_opens()) {
    ++counters_.releases_ignored;
    return {};
  }
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(found - 1));
  ++event_;
  const std::vector<BucketId>& buckets = plan_.unit_buckets[unit];
  for (const BucketId bucket : buckets) {
    unpin(bucket);
  }
  if (backward) {
    for (const BucketId bucket : buckets) {
      BucketView& view = buckets_[bucket];
      --view.backwards_open;
      ++view.backwards_ended;
      if (view.gradient_slot != no_slot && view.backwards_open == 0 &&
          view.backwards_ended >= view.forwards_begun) {
        if (plan_.agreed) {
          note_complete(bucket);
        } else if (reduces_) {
          reduce(bucket);
        }
      }
    }
    if (plan_.agreed && reduces_) {
      plan_reduces(false);
      reduce_planned();
    }
  }
  prefetch();
  return {};
}

Result<void> Schedule::begin_eval() {
  decisions_.clear();
  if (in_eval_) {
    return misuse("eval cannot begin inside eval");
  }
  in_eval_ = true;
  open_before_eval_ = open_.size();
  return {};
}

Result<void> Schedule::end_eval() {
  decisions_.clear();
  if (!in_eval_) {
    return misuse("the end of eval, but none has begun");
  }
  if (auto refused = refuse_if_open("eval cannot end", open_before_eval_)) {
    return *std::move(refused);
  }
  if (plan_.agreed) {
    gather_rest();
  }
  for (BucketId bucket = 0; !plan_.agreed && bucket < buckets_.size(); ++bucket) {
    BucketView& view = buckets_[bucket];
    if (view.slot != no_slot && view.gathered_in_eval && !view.used) {
      drop(bucket, Command::evict);
    }
    view.gathered_in_eval = false;
  }
  eval_.adopt_record(plan_.unit_buckets);
  in_eval_ = false;
  return {};
}

Result<void> Schedule::step_end() {
  decisions_.clear();
  if (in_eval_ || in_micro_batch_) {
    return misuse(
        detail::concat("the step cannot end inside ", in_eval_ ? "eval" : "a micro-batch"));
  }
  if (auto refused = refuse_if_open("the step cannot end", 0)) {
    return *std::move(refused);
  }
  if (std::exchange(left_, false)) {
    reduce_rest();
  }
  if (plan_.replica_sum == ReplicaSum::at_step_end) {
    for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
      if (buckets_[bucket].reduced_in_step) {
        tell(Command::sum_replicas, bucket, no_slot, next_ticket_++);
      }
      buckets_[bucket].reduced_in_step = false;
    }
  }
  make_stale();
  if (plan_.agreed) {
    finish_record();
  }
  train_.adopt_record(plan_.unit_buckets);
  return {};
}

Result<void> Schedule::begin_update() {
  decisions_.clear();
  if (in_eval_) {
    return misuse("an update cannot begin inside eval");
  }
  if (auto refused = refuse_update()) {
    return *std::move(refused);
  }
  if (plan_.agreed && in_micro_batch_) {
    gather_rest();  // how far each rank has come is its own affair
  }
  make_stale();
  return {};
}

Result<void> Schedule::updated(BucketId bucket, bool changed) {
  decisions_.clear();
  if (bucket >= buckets_.size()) {
    return misuse(detail::concat("there is no bucket ", bucket, " to update"));
  }
  ++event_;
  if (changed && held(bucket) && buckets_[bucket].stale) {
    drop(bucket, Command::step_end);  // it was kept, as one that does not change
  }
  buckets_[bucket].stale = false;
  prefetch();
  return {};
}

Result<void> Schedule::reshard() {
  decisions_.clear();
  if (plan_.agreed) {
    return misuse(
        "under this strategy every bucket keeps its parameters; there is nothing to give back");
  }
  for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (held(bucket) && buckets_[bucket].uses == 0) {
      drop(bucket, Command::evict);
    }
  }
  return {};
}

}  // namespace troupe
