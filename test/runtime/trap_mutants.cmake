# The faults of earlier designs, put in one at a time: the traps have to find each.
set(trap_sources traps.cpp traps_main.cpp)

# trap_mutant(<bug> <file> <from> <to>)
function(trap_mutant bug file from to)
  troupe_mutant(trap_${bug}
    SOURCE ${file}
    FROM "${from}"
    TO "${to}"
    TEST ${trap_sources}
    LINK troupe::runtime troupe_test_support CAF::core
    TIMEOUT 120)
endfunction()

troupe_mutant(trap_none CONTROL
  SOURCE runtime/runtime.cpp
  TEST ${trap_sources}
  LINK troupe::runtime troupe_test_support CAF::core)

# The reduce's output is the head of its own input on every rank.
trap_mutant(reduces_into_head actors/bucket_actor.cpp
  "setup_.shard_numel * element;
  Launch launch;"
  "setup_.shard_numel * element * 0;
  Launch launch;")
# The sum is not divided by the number of ranks.
trap_mutant(sum_not_divided runtime/runtime.cpp
  "options.gradient_divisor.value_or(static_cast<float>(context.size()))" "1.0F")
# Every micro-batch overwrites, or a step adds to the one before.
trap_mutant(micro_batches_overwrite actors/scheduler_actor.cpp
  "reduces_[decision.bucket]++ == 0" "true")
trap_mutant(steps_accumulate actors/scheduler_actor.cpp
  "reduces_[decision.bucket]++ == 0" "false")
# The step forgets what is in flight.
trap_mutant(update_waits_for_nothing runtime/runtime.cpp
  "rank.next_ticket() - 1, [&] { return last.done(); }, \"the gathers that read the shards\""
  "0, [] { return true; }, \"the gathers that read the shards\"")
trap_mutant(step_end_waits_for_nothing runtime/runtime.cpp
  "rank.next_ticket() - 1, [&] { return last.done(); }, \"the last reduce of the step\""
  "0, [] { return true; }, \"the last reduce of the step\"")
# A parameter is read, or a gradient buffer written, before the collective on it is done.
trap_mutant(use_waits_for_nothing runtime/runtime_uses.cpp
  "wait_for(bucket.gather," "wait_for(0,")
trap_mutant(gradient_slot_waits_for_nothing runtime/runtime_uses.cpp
  "wait_for(bucket.previous_reduce," "wait_for(0,")
# A collective begins before the computation on its buffer is done.
trap_mutant(gather_ignores_last_use actors/scheduler_actor.cpp
  "last_uses_[decision.slot].add(event.event);" "")
trap_mutant(reduce_ignores_contributions actors/scheduler_actor.cpp
  "contributions_[gradient].add(event.event);" "")
trap_mutant(gather_ignores_update actors/scheduler_actor.cpp
  "updates_[event.bucket] = event.event;" "")
# A parameter without a gradient keeps what was there before; gaps reach the sums.
trap_mutant(unwritten_parameters_kept actors/bucket_actor.cpp
  "message.unwritten != nullptr ? message.unwritten : setup_.gaps" "setup_.gaps")
trap_mutant(gaps_not_zeroed actors/bucket_actor.cpp
  "message.unwritten != nullptr ? message.unwritten : setup_.gaps" "message.unwritten")
trap_mutant(gradients_of_last_step_kept runtime/runtime.cpp
  "if (std::ranges::find(unreduced, bucket.id) == unreduced.end()) {"
  "if (true) {")
# Launches in the order in which messages happen to arrive.
trap_mutant(launches_as_they_come actors/comm_actor.cpp
  "if (ticket != next_) {" "if (false) {")
# One context for the whole process: the runtimes share a sequence.
trap_mutant(runtimes_share_tickets actors/rank_actors.cpp
  "impl_->rank.set_next_ticket(impl_->words.answer.next_ticket);" "")
# An update on a stream is taken for done when its call returns.
trap_mutant(step_end_ignores_update runtime/runtime.cpp
  "await_update(bucket.id, nullptr);" "")
trap_mutant(update_ignores_update runtime/runtime.cpp
  "await_update(bucket.id, stream);" "")
