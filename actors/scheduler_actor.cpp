#include "troupe/actors/scheduler_actor.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

const char* to_string(TrainerEventKind kind) {
  switch (kind) {
    case TrainerEventKind::begin_micro_batch:
      return "begin of a micro-batch";
    case TrainerEventKind::end_micro_batch:
      return "end of a micro-batch";
    case TrainerEventKind::begin_use:
      return "begin of a use";
    case TrainerEventKind::end_use:
      return "end of a use";
    case TrainerEventKind::abandon_use:
      return "abandoned use";
    case TrainerEventKind::begin_eval:
      return "begin of an eval pass";
    case TrainerEventKind::end_eval:
      return "end of an eval pass";
    case TrainerEventKind::step_end:
      return "step end";
    case TrainerEventKind::begin_update:
      return "begin of an update";
    case TrainerEventKind::updated:
      return "update of a bucket";
    case TrainerEventKind::reshard:
      return "reshard";
    case TrainerEventKind::adopt_order:
      return "adoption of an order";
  }
  return "?";
}

Scheduler::Scheduler(caf::actor_config& config,
                     const Routing& routing,
                     RankState& state,
                     SchedulerSetup setup,
                     RuntimeWords& words,
                     std::vector<BucketActor> buckets,
                     const caf::execution_unit* trainer)
    : Routed(config,
             routing,
             {ActorTag::Kind::scheduler, state.config.rank, setup.runtime},
             nullptr,
             words.alive,
             *state.config.waiter),
      state_(state),
      setup_(std::move(setup)),
      words_(words),
      buckets_(std::move(buckets)),
      trainer_(trainer),
      schedule_(setup_.plan),
      last_uses_(setup_.slot_bytes.size()),
      contributions_(setup_.gradient_slot_bytes.size()),
      updates_(buckets_.size()),
      gradient_slots_(buckets_.size(), no_slot),
      unwritten_(buckets_.size()),
      reduces_(buckets_.size(), 0) {}

Scheduler::behavior_type Scheduler::make_behavior() {
  return {
      [this](const TrainerEvent& event) { handle(event); },
      [this](const Stop&) { stopped_ = true; },
  };
}

void Scheduler::handle(const TrainerEvent& event) {
  Answer& answer = words_.answer;
  answer.refused.reset();
  answer.used.clear();
  answer.reduced.clear();
  answer.unreduced.clear();
  answer.next_ticket = event.next_ticket;
  if (event.kind == TrainerEventKind::abandon_use) {
    abandon(event);
  } else if (!stopped_) {  // a stopped scheduler answers: the trainer looks at the rank's failure
                           // next
    schedule_.set_next_ticket(event.next_ticket);
    if (auto decided = decide(event); !decided) {
      answer.refused = decided.failure();
    } else {
      note_last_use(event);
      for (const Decision& decision : schedule_.decisions()) {
        carry_out(decision, event);
      }
      if (event.kind == TrainerEventKind::begin_use) {
        answer.used = schedule_.used();
      }
      if (event.kind == TrainerEventKind::step_end) {
        for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
          if (setup_.plan.gradient_class[bucket] != SchedulePlan::no_class &&
              reduces_[bucket] == 0) {
            answer.unreduced.push_back(bucket);
          }
          reduces_[bucket] = 0;
        }
        answer.recorded = schedule_.recorded();
      }
      answer.next_ticket = schedule_.next_ticket();
    }
  }
  words_.counters = schedule_.counters();
  words_.handled.store(event.sequence);
  if (context() != trainer_) {
    state_.config.waiter->notify();
  }
}

Result<void> Scheduler::decide(const TrainerEvent& event) {
  switch (event.kind) {
    case TrainerEventKind::begin_micro_batch:
      return schedule_.begin_micro_batch(event.reduces);
    case TrainerEventKind::end_micro_batch:
      return schedule_.end_micro_batch();
    case TrainerEventKind::begin_use:
      return schedule_.begin(event.unit, event.backward);
    case TrainerEventKind::end_use:
      return schedule_.end(event.unit, event.backward);
    case TrainerEventKind::begin_eval:
      return schedule_.begin_eval();
    case TrainerEventKind::end_eval:
      return schedule_.end_eval();
    case TrainerEventKind::step_end:
      return schedule_.step_end();
    case TrainerEventKind::begin_update:
      return schedule_.begin_update();
    case TrainerEventKind::updated:
      updates_[event.bucket] = event.event;
      return schedule_.updated(event.bucket, event.changed);
    case TrainerEventKind::reshard:
      return schedule_.reshard();
    case TrainerEventKind::adopt_order:
      schedule_.adopt(*event.order);
      break;
    case TrainerEventKind::abandon_use:
      break;
  }
  return {};
}

/// Before the decisions of an end are carried out: a slot may be given away by the very same event.
void Scheduler::note_last_use(const TrainerEvent& event) {
  if (event.kind != TrainerEventKind::end_use) {
    return;
  }
  for (const Decision& decision : schedule_.decisions()) {
    if (decision.command != Command::release) {
      continue;
    }
    last_uses_[decision.slot].add(event.event);
    if (const SlotId gradient = gradient_slots_[decision.bucket];
        event.backward && gradient != no_slot) {
      contributions_[gradient].add(event.event);
      unwritten_[decision.bucket] = unwritten_of(decision.bucket, event);
    }
  }
}

/// What of its gradient was not written so far; its reduce may come at a later event.
Ranges Scheduler::unwritten_of(BucketId bucket, const TrainerEvent& event) {
  if (event.unwritten != nullptr) {
    for (const UnwrittenRanges& each : *event.unwritten) {
      if (each.bucket == bucket) {
        return each.ranges;
      }
    }
  }
  return nullptr;
}

void Scheduler::carry_out(const Decision& decision, const TrainerEvent& event) {
  const BucketActor& bucket = buckets_[decision.bucket];
  switch (decision.command) {
    case Command::gather:
    case Command::regather: {
      hold_unsharded(setup_.slot_bytes[decision.slot]);
      Gather gather{decision.ticket, decision.slot, decision.command == Command::regather,
                    std::exchange(last_uses_[decision.slot], {})};
      gather.after.add(updates_[decision.bucket]);
      words_.requested.fetch_add(1);
      send(bucket, gather);
      break;
    }
    case Command::use:
      send(bucket, BeginUse{});
      break;
    case Command::release:
      send(bucket, EndUse{});
      break;
    case Command::evict:
    case Command::step_end:
      hold_unsharded(-setup_.slot_bytes[decision.slot]);
      if (decision.command == Command::evict) {
        send(bucket, Evict{});
      } else {
        send(bucket, StepEnd{});
      }
      break;
    case Command::contribute:
      hold_gradient(setup_.gradient_slot_bytes[decision.slot]);
      gradient_slots_[decision.bucket] = decision.slot;
      if (event.kind != TrainerEventKind::begin_use) {
        unwritten_[decision.bucket] = setup_.whole[decision.bucket];  // not used: zeros
      }
      send(bucket, Contribute{decision.slot});
      break;
    case Command::reduce: {
      hold_gradient(-setup_.gradient_slot_bytes[decision.slot]);
      gradient_slots_[decision.bucket] = no_slot;
      Reduce reduce{decision.ticket, decision.slot, reduces_[decision.bucket]++ == 0,
                    std::exchange(contributions_[decision.slot], {}),
                    std::exchange(unwritten_[decision.bucket], nullptr)};
      // Nothing else orders it behind the last update where no rank has used the bucket.
      reduce.after.add(updates_[decision.bucket]);
      if (setup_.whole.empty() || reduce.unwritten != setup_.whole[decision.bucket]) {
        words_.answer.reduced.push_back(decision.bucket);
      }
      words_.requested.fetch_add(setup_.plan.replica_sum == ReplicaSum::every_reduce ? 2 : 1);
      send(bucket, std::move(reduce));
      break;
    }
    case Command::sum_replicas:
      words_.requested.fetch_add(1);
      send(bucket, SumReplicas{decision.ticket});
      break;
  }
}

/// An exception unwinds a use: its buckets fail, and nothing is decided any more.
void Scheduler::abandon(const TrainerEvent& event) {
  if (std::exchange(stopped_, true)) {
    return;
  }
  for (const BucketId bucket : setup_.plan.unit_buckets[event.unit]) {
    if (schedule_.open_uses(bucket) > 0) {
      send(buckets_[bucket], Abandon{});
    }
  }
}

void Scheduler::hold_unsharded(std::int64_t change) {
  DeviceCounters& counters = state_.config.device->counters();
  hold(TraceCounter::unsharded_bytes, words_.unsharded, counters.unsharded_bytes,
       counters.unsharded_bytes_peak, change);
}

void Scheduler::hold_gradient(std::int64_t change) {
  DeviceCounters& counters = state_.config.device->counters();
  hold(TraceCounter::gradient_bytes, words_.gradients, counters.gradient_bytes,
       counters.gradient_bytes_peak, change);
}

/// In the books of this runtime and in those of the device.
void Scheduler::hold(TraceCounter counter,
                     HeldBytes& own,
                     std::atomic<std::int64_t>& bytes,
                     std::atomic<std::int64_t>& peak,
                     std::int64_t change) {
  own.now += change;
  own.peak = std::max(own.peak, own.now);
  const std::int64_t now = bytes.fetch_add(change) + change;
  if (now > peak.load()) {
    peak.store(now);  // the rank's calls form one sequence: no other writer
  }
  if (RankTrace* const trace = state_.config.trace; trace != nullptr) {
    trace->count(counter, change, state_.config.clock->now());
  }
}

void Scheduler::on_exit() {
  hold_unsharded(-words_.unsharded.now);
  hold_gradient(-words_.gradients.now);
  buckets_.clear();
  Routed::on_exit();
}

}  // namespace troupe
