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
      return Sent::Kind::other;
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
      to = {.kind = Kind::begin_micro_batch};
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
    case TrainerEventKind::adopt_order:
      return false;
    case TrainerEventKind::begin_update:
      to = {.kind = Kind::begin_update};
      return true;
    case TrainerEventKind::updated:
      to = {.kind = Kind::updated, .id = event.bucket};
      return true;
    case TrainerEventKind::abandon_use:
      return false;
  }
  return false;
}

}  // namespace

void Invariants::slots_as_planned(const Sent& message) {
  RankView& rank = view(message.to.rank);
  BucketView& own = bucket(message.to);
  const auto wrong = [&](const std::string& what) {
    simulation_.violated(planned, place(message.to) + what);
  };
  const auto taken = [&](SlotId BucketView::* slot) {
    return std::ranges::any_of(
        rank.buckets, [&](const BucketView& other) { return other.*slot == message.slot; });
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

void Invariants::bytes_as_planned(int rank) {
  RankView& own = view(rank);
  const MemoryPlan& plan = own.runtime->memory_plan();
  std::int64_t bytes = 0;
  std::int64_t gradient_bytes = 0;
  int unused = 0;
  const auto class_of = [&](const SlotPlan& slots, std::size_t id, SlotId slot) {
    const SlotClass& its = slots.classes[slots.class_of[id]];
    if (slot < its.first || slot >= its.first + its.count) {
      simulation_.violated(planned, "rank " + std::to_string(rank) + " bucket " +
                                        std::to_string(id) + " is in a slot of another class");
    }
    return its.bytes_per_slot;
  };
  for (std::size_t id = 0; id < own.buckets.size(); ++id) {
    const BucketView& each = own.buckets[id];
    if (each.slot != no_slot) {
      bytes += class_of(plan.parameters, id, each.slot);
      unused += each.used ? 0 : 1;
    }
    if (each.gradient_slot != no_slot) {
      gradient_bytes += class_of(plan.gradients, id, each.gradient_slot);
    }
  }
  const DeviceCounters& counters = simulation_.device(rank).counters();
  if (counters.unsharded_bytes != bytes || counters.gradient_bytes != gradient_bytes ||
      bytes > plan.parameters.bytes || gradient_bytes > plan.gradients.bytes) {
    simulation_.violated(planned, "rank " + std::to_string(rank) + " holds " +
                                      std::to_string(bytes) + " bytes of parameters and " +
                                      std::to_string(gradient_bytes) + " of gradients, counts " +
                                      std::to_string(counters.unsharded_bytes) + " and " +
                                      std::to_string(counters.gradient_bytes));
  }
  if (unused > plan.prefetch_depth) {
    simulation_.violated(planned, "rank " + std::to_string(rank) + " holds " +
                                      std::to_string(unused) +
                                      " buckets gathered ahead; the depth is " +
                                      std::to_string(plan.prefetch_depth));
  }
}

void Invariants::decisions_follow_the_rules(int rank, const Sent& event) {
  RankView& own = view(rank);
  testing::Event same;
  if (own.reference == nullptr || !translate(event, same)) {
    return;
  }
  const std::vector<Decision> right = own.reference->decide(same);
  const auto equal = [](const Sent& message, const Decision& decision) {
    const bool has_slot = message.slot != no_slot;
    return message.kind == kind_of(decision.command) && message.to.bucket == decision.bucket &&
           (!has_slot || message.slot == decision.slot);
  };
  if (!std::ranges::equal(own.decisions, right, equal)) {
    std::string text = "rank " + std::to_string(rank) + ", after '" + to_string(event) +
                       "' the scheduler decides:";
    for (const Sent& message : own.decisions) {
      text += "\n      " + to_string(message);
    }
    text += "\n    by the rules:";
    for (const Decision& decision : right) {
      Sent message{.kind = kind_of(decision.command),
                   .to = {ActorTag::Kind::bucket, rank, decision.bucket},
                   .slot = decision.slot};
      text += "\n      " + to_string(message);
    }
    simulation_.violated(one_list, text);
  }
}

}  // namespace troupe::test
