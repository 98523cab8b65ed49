// What the scheduler decides: within the plan, and by the rules.
#include "invariants.hpp"

#include <algorithm>

namespace troupe::test {

namespace {

constexpr const char* planned = "2: slots and bytes held never exceed the plan";
constexpr const char* one_list = "3: launches are a function of the program";

Sent::Kind kind_of(Command command) {
  switch (command) {
    case Command::gather:
    case Command::regather:
      return Sent::Kind::gather;
    case Command::use:
      return Sent::Kind::begin_use;
    case Command::release:
      return Sent::Kind::end_use;
    case Command::evict:
      return Sent::Kind::evict;
    case Command::contribute:
      return Sent::Kind::contribute;
    case Command::reduce:
      return Sent::Kind::reduce;
    case Command::sum_replicas:
      return Sent::Kind::sum_replicas;
    case Command::step_end:
      return Sent::Kind::step_end;
  }
  return Sent::Kind::other;
}

/// The same event in the words of the reference; false: it is none that the schedule sees.
bool translate(const Sent& event, testing::Event& to) {
  using Kind = testing::EventKind;
  const UnitId unit = event.unit;
  switch (event.event) {
    case TrainerEventKind::begin_micro_batch:
      to = {.kind = Kind::begin_micro_batch, .reduces = event.reduces};
      return true;
    case TrainerEventKind::end_micro_batch:
      to = {.kind = Kind::end_micro_batch};
      return true;
    case TrainerEventKind::begin_use:
      to = {.kind = event.backward ? Kind::begin_backward : Kind::begin_forward, .id = unit};
      return true;
    case TrainerEventKind::end_use:
      to = {.kind = event.backward ? Kind::end_backward : Kind::end_forward, .id = unit};
      return true;
    case TrainerEventKind::begin_eval:
      to = {.kind = Kind::begin_eval};
      return true;
    case TrainerEventKind::end_eval:
      to = {.kind = Kind::end_eval};
      return true;
    case TrainerEventKind::step_end:
      to = {.kind = Kind::step_end};
      return true;
    case TrainerEventKind::reshard:
      to = {.kind = Kind::reshard};
      return true;
    case TrainerEventKind::adopt_order:
      to = {.kind = Kind::adopt};
      return true;
    case TrainerEventKind::begin_update:
      to = {.kind = Kind::begin_update};
      return true;
    case TrainerEventKind::updated:
      to = {.kind = Kind::updated, .id = event.bucket, .changed = event.changed};
      return true;
    case TrainerEventKind::abandon_use:
      return false;
  }
  return false;
}

}  // namespace

void Invariants::slots_as_planned(const Sent& message) {
  RuntimeView& runtime = view(message.to);
  BucketView& own = bucket(message.to);
  const auto wrong = [&](const std::string& what) {
    simulation_.violated(planned, place(message.to) + what);
  };
  const auto taken = [&](SlotId BucketView::* slot) {
    return std::ranges::any_of(
        runtime.buckets, [&](const BucketView& other) { return other.*slot == message.slot; });
  };
  switch (message.kind) {
    case Sent::Kind::gather:
      if (own.slot != no_slot || taken(&BucketView::slot)) {
        wrong("is gathered into slot " + std::to_string(message.slot) + ", which is taken");
      }
      own.slot = message.slot;
      own.pins = 0;
      own.used = false;
      break;
    case Sent::Kind::begin_use:
      if (own.slot == no_slot) {
        wrong("a use of a bucket that is not held");
      }
      ++own.pins;
      own.used = true;
      break;
    case Sent::Kind::end_use:
      if (--own.pins < 0) {
        wrong("released more often than used");
      }
      break;
    case Sent::Kind::evict:
    case Sent::Kind::step_end:
      if (own.slot == no_slot || own.pins > 0) {
        wrong(own.pins > 0 ? "evicted while in use" : "evicted, but not held");
      }
      own.slot = no_slot;
      break;
    case Sent::Kind::contribute:
      if (own.gradient_slot != no_slot || taken(&BucketView::gradient_slot)) {
        wrong("fills gradient slot " + std::to_string(message.slot) + ", which is taken");
      }
      own.gradient_slot = message.slot;
      break;
    case Sent::Kind::reduce:
      if (own.gradient_slot != message.slot) {
        wrong("reduces a gradient slot that it does not fill");
      }
      own.gradient_slot = no_slot;
      break;
    default:
      break;
  }
}

/// Of all runtimes of the rank: they share its device.
void Invariants::bytes_as_planned(int rank) {
  std::int64_t bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t bytes_max = 0;
  std::int64_t gradient_bytes_max = 0;
  const auto class_of = [&](const SlotPlan& slots, std::size_t id, SlotId slot) {
    const SlotClass& its = slots.classes[slots.class_of[id]];
    if (slot < its.first || slot >= its.first + its.count) {
      simulation_.violated(planned, "rank " + std::to_string(rank) + " bucket " +
                                        std::to_string(id) + " is in a slot of another class");
    }
    return its.bytes_per_slot;
  };
  for (const RuntimeView& own : view(rank).runtimes) {
    if (own.runtime == nullptr) {
      continue;
    }
    const MemoryPlan& plan = own.runtime->memory_plan();
    bytes_max += plan.parameters.bytes;
    gradient_bytes_max += plan.gradients.bytes;
    for (std::size_t id = 0; id < own.buckets.size(); ++id) {
      const BucketView& each = own.buckets[id];
      bytes += each.slot != no_slot ? class_of(plan.parameters, id, each.slot) : 0;
      gradient_bytes +=
          each.gradient_slot != no_slot ? class_of(plan.gradients, id, each.gradient_slot) : 0;
    }
  }
  const DeviceCounters& counters = simulation_.device(rank).counters();
  if (counters.unsharded_bytes != bytes || counters.gradient_bytes != gradient_bytes ||
      bytes > bytes_max || gradient_bytes > gradient_bytes_max) {
    simulation_.violated(planned, "rank " + std::to_string(rank) + " holds " +
                                      std::to_string(bytes) + " bytes of parameters and " +
                                      std::to_string(gradient_bytes) + " of gradients, counts " +
                                      std::to_string(counters.unsharded_bytes) + " and " +
                                      std::to_string(counters.gradient_bytes));
  }
}

/// Under an agreed order a use launches all gathers before its own: there is no such limit.
void Invariants::ahead_as_planned(const ActorTag& scheduler) {
  const RuntimeView& own = view(scheduler);
  const int depth = own.runtime->memory_plan().prefetch_depth;
  const auto unused = std::ranges::count_if(
      own.buckets, [](const BucketView& each) { return each.slot != no_slot && !each.used; });
  if (own.runtime->options().strategy == Strategy::full_shard && unused > depth) {
    simulation_.violated(planned, place(scheduler) + "holds " + std::to_string(unused) +
                                      " buckets gathered ahead; the depth is " +
                                      std::to_string(depth));
  }
}

/// Every rank adopts what rank 0 has done in the last step, by the reference, if that looks on.
/// Rank 0 may be ahead.
void Invariants::order_is_of_rank_0(const Sent& event) {
  if (event.event != TrainerEventKind::adopt_order) {
    return;
  }
  const std::size_t step = view(event.to).adopted++;
  const RuntimeView& of_rank_0 = view({ActorTag::Kind::scheduler, 0, event.to.runtime});
  if (reference_rank_ == 0 && !(*event.order == of_rank_0.recorded.at(step))) {
    simulation_.violated(one_list, place(event.to) + "adopts an order that is not rank 0's");
  }
}

/// A trainer's next call finds everything over that its calls have launched. (Another runtime on
/// the device may have something under way.)
void Invariants::waited_without_overlap(const Sent& event) {
  const RankView& rank = view(event.to.rank);
  const RuntimeView& own = view(event.to);
  if (own.runtime == nullptr || own.runtime->options().overlap || rank.stopped ||
      rank.runtimes[1].runtime != nullptr) {
    return;
  }
  const RankState& state = simulation_.context(event.to.rank).actors().state();
  const bool over = std::ranges::all_of(state.last_event, &troupe::Event::done);
  if (event.kind == Sent::Kind::trainer_event && !state.failed && !over) {
    simulation_.violated(one_list, place(event.to) + "collectives are under way before '" +
                                       to_string(event) + "', though nothing may overlap");
  }
}

void Invariants::decisions_follow_the_rules(const Sent& event) {
  RuntimeView& own = view(event.to);
  testing::Event same;
  if (own.reference == nullptr || !translate(event, same)) {
    return;
  }
  if (event.order != nullptr) {
    own.reference->adopt(*event.order);
  }
  const std::vector<Decision> right = own.reference->decide(same);
  if (event.event == TrainerEventKind::step_end) {
    own.recorded.push_back(own.reference->recorded());
  }
  const auto equal = [](const Sent& message, const Decision& decision) {
    const bool has_slot = message.slot != no_slot;
    return message.kind == kind_of(decision.command) && message.to.bucket == decision.bucket &&
           message.again == (decision.command == Command::regather) &&
           (!has_slot || message.slot == decision.slot);
  };
  if (!std::ranges::equal(own.decisions, right, equal)) {
    std::string text = "after '" + to_string(event) + "' the scheduler decides:";
    for (const Sent& message : own.decisions) {
      text += "\n      " + to_string(message);
    }
    text += "\n    by the rules:";
    for (const Decision& decision : right) {
      Sent message{.kind = kind_of(decision.command),
                   .to = {ActorTag::Kind::bucket, event.to.rank, event.to.runtime, decision.bucket},
                   .slot = decision.slot,
                   .again = decision.command == Command::regather};
      text += "\n      " + to_string(message);
    }
    simulation_.violated(one_list, text);
  }
}

}  // namespace troupe::test
