// What each single decision must fulfil, and what it changes in the books.
#include "schedule_ledger.hpp"

#include <algorithm>

namespace troupe::testing {

namespace {

bool within(const SchedulePlan::Class& limit, SlotId slot) {
  return slot >= limit.first && slot < limit.first + limit.count;
}

}  // namespace

std::string Ledger::step_state(BucketId bucket, BucketEvent event) {
  const auto next = next_state(entries_[bucket].state, event);
  if (!next) {
    return "every state change is a row of the table";
  }
  entries_[bucket].state = *next;
  return {};
}

std::string Ledger::enter_decision(const Event& event, const Decision& decision) {
  Entry& entry = entries_[decision.bucket];
  const bool gathers = decision.command == Command::gather || decision.command == Command::regather;
  const bool launches =
      gathers || decision.command == Command::reduce || decision.command == Command::sum_replicas;
  if (launches && decision.ticket != next_ticket_++) {
    return "tickets follow each other";
  }
  const auto is_taken = [&](SlotId Entry::* slot) {
    return std::ranges::any_of(entries_,
                               [&](const Entry& other) { return other.*slot == decision.slot; });
  };
  switch (decision.command) {
    case Command::gather:
    case Command::regather:
      if (entry.stale) {
        return "nothing stale is gathered";
      }
      if (std::string violated = check_order_of_gather(decision.bucket); !violated.empty()) {
        return violated;
      }
      if ((decision.command == Command::regather) !=
          (entry.gathered_in_version && plan_.regathers[decision.bucket])) {
        return "a bucket is gathered within the smaller group after its first gather of a version";
      }
      entry.gathered_in_version = !plan_.regathers.empty();
      if (!within(plan_.slot_classes[plan_.slot_class[decision.bucket]], decision.slot) ||
          is_taken(&Entry::slot)) {
        return "a gather has a slot of its class that nobody else has";
      }
      entry.slot = decision.slot;
      entry.gather = decision.ticket;
      entry.used = false;
      return step_state(decision.bucket, BucketEvent::gather);
    case Command::use:
      if (!begins_use(event) || !uses(event.id, decision.bucket) || decision.slot != entry.slot) {
        return "a use is told to a held bucket of the unit that begins";
      }
      entry.used = true;
      ++entry.told_uses;
      return step_state(decision.bucket, BucketEvent::use);
    case Command::release:
      if (!ends_use(event) || !uses(event.id, decision.bucket) || decision.slot != entry.slot ||
          entry.told_uses == 0) {
        return "a release is told to a used bucket of the unit that ends";
      }
      --entry.told_uses;
      return step_state(decision.bucket,
                        entry.told_uses == 0 ? BucketEvent::release_last : BucketEvent::release);
    case Command::evict:
    case Command::step_end: {
      const bool ends_step = decision.command == Command::step_end;
      const bool changes = plan_.agreed && event.kind == EventKind::updated && event.changed &&
                           event.id == decision.bucket && !trains(event.id);
      if (open_uses(decision.bucket, false) > 0) {
        return "a bucket in use, or of the unit that begins, keeps its slot";
      }
      if (decision.slot != entry.slot ||
          ends_step != (event.kind == EventKind::step_end ||
                        event.kind == EventKind::begin_update || changes)) {
        return "a slot that is given back was held";
      }
      if (plan_.agreed && !changes && (!ends_step || !trains(decision.bucket))) {
        return "a bucket that has its own slot keeps it until its parameters change";
      }
      entry.slot = no_slot;
      return step_state(decision.bucket, ends_step ? BucketEvent::step_end : BucketEvent::evict);
    }
    case Command::contribute: {
      const std::uint32_t index = plan_.gradient_class[decision.bucket];
      if (event.kind != EventKind::begin_backward && plan_.agreed) {
        if (std::string violated = check_zeros(event, decision.bucket); !violated.empty()) {
          return violated;
        }
      } else if (event.kind != EventKind::begin_backward || !uses(event.id, decision.bucket)) {
        return "a backward takes gradient slots for its unit";
      }
      if (index == SchedulePlan::no_class || entry.gradient_slot != no_slot ||
          !within(plan_.gradient_classes[index], decision.slot) ||
          is_taken(&Entry::gradient_slot)) {
        return "a gradient slot is of the class of its bucket, and nobody else has it";
      }
      entry.gradient_slot = decision.slot;
      return {};
    }
    case Command::reduce:
      if (entry.gradient_slot == no_slot || entry.gradient_slot != decision.slot) {
        return "what is reduced was being filled";
      }
      if (std::string violated = plan_.agreed ? check_order_of_reduce(event, decision.bucket) : "";
          !violated.empty()) {
        return violated;
      }
      next_ticket_ += plan_.replica_sum == ReplicaSum::every_reduce ? 1U : 0U;
      entry.gradient_slot = no_slot;
      entry.reduced = true;
      entry.reduced_in_step = true;
      last_reduce_[decision.slot] = next_ticket_ - 1;
      return {};
    case Command::sum_replicas:
      if (event.kind != EventKind::step_end || plan_.replica_sum != ReplicaSum::at_step_end ||
          !entry.reduced_in_step || decision.slot != no_slot) {
        return "at the end of a step, main gradients that were reduced are summed";
      }
      entry.reduced_in_step = false;
      return {};
  }
  return "a command is one of the known ones";
}

}  // namespace troupe::testing
