# The faults that the suite has to find. One program holds all of them; one is chosen when it starts.
#
# mutant(<name> <room>/<file>.cpp FROM <text> TO <text>)
#   In a copy of the file FROM, which must occur exactly once, is replaced by TO, in which MUTANT
#   stands for the question whether this fault is the chosen one.

set(mutant_names)
set(mutated_files)

function(mutant name file)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "FROM;TO" "")
  string(MAKE_C_IDENTIFIER "mutated_${file}" text)
  if(NOT DEFINED ${text})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${file}")
    file(READ "${PROJECT_SOURCE_DIR}/${file}" ${text})
    set(${text} "#include \"troupe/test/model/mutant.hpp\"\n${${text}}")
    list(APPEND mutated_files ${file})
  endif()
  string(FIND "${${text}}" "${arg_FROM}" first)
  string(FIND "${${text}}" "${arg_FROM}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "${file} must contain the text of the mutant ${name} exactly once:\n${arg_FROM}")
  endif()
  string(REPLACE "MUTANT" "::troupe::test::mutant(\"${name}\")" to "${arg_TO}")
  string(REPLACE "${arg_FROM}" "${to}" ${text} "${${text}}")
  set(${text} "${${text}}" PARENT_SCOPE)
  set(mutated_files "${mutated_files}" PARENT_SCOPE)
  set(mutant_names ${mutant_names} ${name} PARENT_SCOPE)
endfunction()

# ---- launches and completions ------------------------------------------------------------------

mutant(launch_out_of_ticket_order actors/comm_actor.cpp
  FROM "if (ticket != next_) {"
  TO "if (ticket != next_ && !MUTANT) {")
mutant(held_back_launch_forgotten actors/comm_actor.cpp
  FROM "while (!stopped_ && !held_back_.empty() && held_back_.begin()->first == next_) {"
  TO "while (!stopped_ && !held_back_.empty() && held_back_.begin()->first == next_ && !MUTANT) {")
mutant(completion_of_an_old_ticket_believed actors/comm_actor.cpp
  FROM "const auto found = in_flight_.find(message.ticket);"
  TO "const auto found = MUTANT ? in_flight_.begin() : in_flight_.find(message.ticket);")
mutant(state_follows_a_completion actors/bucket_actor.cpp
  FROM "  open_.erase(found);
"
  TO "  open_.erase(found);
  if (life_ == BucketState::gathering && MUTANT) {
    life_ = BucketState::ready;
    words_.states[setup_.id].store(life_);
  }
")
mutant(tickets_taken_twice actors/rank_actors.cpp
  FROM "impl_->rank.set_next_ticket(impl_->words.answer.next_ticket);"
  TO "if (impl_->words.answer.reduced.empty() || !MUTANT) {
    impl_->rank.set_next_ticket(impl_->words.answer.next_ticket);
  }")

# ---- decisions ---------------------------------------------------------------------------------

mutant(eviction_of_a_bucket_in_use core/schedule_steps.cpp
  FROM "if (buckets_[candidate].uses > 0) {"
  TO "if (buckets_[candidate].uses > 0 && !MUTANT) {")
mutant(release_counted_twice core/schedule_steps.cpp
  FROM "  --view.uses;
  if (view.uses == 0) {"
  TO "  view.uses -= view.uses > 1 && MUTANT ? 2 : 1;
  if (view.uses == 0) {")
mutant(do_no_harm_dropped core/schedule_steps.cpp
  FROM "(position && victim_next <= *position)"
  TO "(position && victim_next <= *position && !MUTANT)")
mutant(stale_bucket_prefetched core/schedule_steps.cpp
  FROM "if (buckets_[bucket].stale || unused_count_ >= depth"
  TO "if ((buckets_[bucket].stale && !MUTANT) || unused_count_ >= depth")
mutant(prefetch_beyond_the_depth core/schedule_steps.cpp
  FROM "|| !make_room(bucket, position)) {"
  TO "&& !(unused_count_ >= depth && !buckets_[bucket].stale && unused_count_ < depth + 1 && MUTANT)) {
        order().set_scan(position);
        return;
      }
      if (!make_room(bucket, position)) {")
mutant(nearest_use_evicted core/schedule_steps.cpp
  FROM "return next > victim_next;"
  TO "return MUTANT ? next < victim_next : next > victim_next;")
mutant(gradient_slot_never_given_back core/schedule_steps.cpp
  FROM "gradient_classes_[plan_.gradient_class[bucket]].give_back(view.gradient_slot);"
  TO "gradient_classes_[plan_.gradient_class[bucket]].give_back(
      MUTANT ? plan_.gradient_classes[plan_.gradient_class[bucket]].first : view.gradient_slot);")
mutant(counts_survive_a_micro_batch core/schedule.cpp
  FROM "buckets_[bucket].backwards_ended = 0;"
  TO "buckets_[bucket].backwards_ended = MUTANT ? buckets_[bucket].backwards_ended : 0;")
mutant(reduced_before_the_last_backward core/schedule.cpp
  FROM "view.backwards_ended >= view.forwards_begun) {"
  TO "(view.backwards_ended >= view.forwards_begun || MUTANT)) {")
mutant(eval_leaves_its_gathers core/schedule.cpp
  FROM "view.gathered_in_eval && !view.used) {"
  TO "view.gathered_in_eval && !view.used && !MUTANT) {")
mutant(step_end_keeps_buckets core/schedule.cpp
  FROM "  drop_all();
  train_.adopt_record(plan_.unit_buckets);"
  TO "  if (!MUTANT) {
    drop_all();
  }
  train_.adopt_record(plan_.unit_buckets);")

# ---- order between streams, buffers --------------------------------------------------------------

mutant(slot_reused_before_its_last_use actors/scheduler_actor.cpp
  FROM "last_uses_[decision.slot].add(event.event);"
  TO "last_uses_[decision.slot].add(MUTANT ? Event{} : event.event);")
mutant(reduce_waits_for_no_contribution actors/scheduler_actor.cpp
  FROM "contributions_[gradient].add(event.event);"
  TO "contributions_[gradient].add(MUTANT ? Event{} : event.event);")
mutant(gather_waits_for_no_update actors/scheduler_actor.cpp
  FROM "updates_[event.bucket] = event.event;"
  TO "updates_[event.bucket] = MUTANT ? Event{} : event.event;")
mutant(micro_batches_overwrite actors/scheduler_actor.cpp
  FROM "reduces_[decision.bucket]++ == 0"
  TO "(reduces_[decision.bucket]++ == 0 || MUTANT)")
mutant(use_waits_for_no_gather runtime/runtime_uses.cpp
  FROM "wait_for(bucket.gather, table_"
  TO "wait_for(MUTANT ? 0 : bucket.gather, table_")
mutant(gradient_slot_waits_for_no_reduce runtime/runtime_uses.cpp
  FROM "wait_for(bucket.previous_reduce, table_"
  TO "wait_for(MUTANT ? 0 : bucket.previous_reduce, table_")
mutant(gather_in_flight_forgotten_at_update runtime/runtime.cpp
  FROM "[&] { return last.done(); }, \"the gathers that read the shards\");"
  TO "[&] { return last.done() || MUTANT; }, \"the gathers that read the shards\");")
mutant(step_end_waits_for_no_reduce runtime/runtime.cpp
  FROM "[&] { return last.done(); }, \"the last reduce of the step\");"
  TO "[&] { return last.done() || MUTANT; }, \"the last reduce of the step\");")
mutant(update_overtakes_an_update runtime/runtime.cpp
  FROM "    await_update(bucket.id, stream);
"
  TO "    if (!MUTANT) {
      await_update(bucket.id, stream);
    }
")
mutant(unwritten_gradient_kept actors/bucket_actor.cpp
  FROM "message.unwritten != nullptr ? message.unwritten : setup_.gaps"
  TO "message.unwritten != nullptr && !MUTANT ? message.unwritten : setup_.gaps")

# ---- failures ----------------------------------------------------------------------------------

mutant(first_error_overwritten comm/first_failure.cpp
  FROM "if (!failure_) {"
  TO "if (!failure_ || MUTANT) {")
mutant(comm_not_stopped actors/supervisor_actor.cpp
  FROM "if (comm_) {"
  TO "if (comm_ && !MUTANT) {")
mutant(failed_bucket_does_not_answer actors/bucket_actor.cpp
  FROM "if (!advance(BucketEvent::gather)) {
    retire(message.ticket);"
  TO "if (!advance(BucketEvent::gather)) {
    if (!MUTANT) {
      retire(message.ticket);
    }")
mutant(trainer_does_not_hear_of_the_failure actors/supervisor_actor.cpp
  FROM "  state_.failed.store(true);
"
  TO "  state_.failed.store(!MUTANT);
")
mutant(abandoned_use_is_not_reported runtime/rank_context.cpp
  FROM "  if (!actors_->failed()) {
    report(std::move(failure));"
  TO "  if (!actors_->failed() && !MUTANT) {
    report(std::move(failure));")

# ---- the program and its tests -----------------------------------------------------------------

set(mutated_sources)
foreach(file IN LISTS mutated_files)
  string(MAKE_C_IDENTIFIER "mutated_${file}" text)
  set(copy "${CMAKE_CURRENT_BINARY_DIR}/mutated/${file}")
  file(WRITE "${copy}.new" "${${text}}")
  file(COPY_FILE "${copy}.new" "${copy}" ONLY_IF_DIFFERENT)
  list(APPEND mutated_sources "${copy}")
endforeach()
list(JOIN mutant_names "\", \"" names)
file(CONFIGURE OUTPUT mutated/mutant_names.cpp @ONLY CONTENT [[
#include "troupe/test/model/mutant_names.hpp"
namespace troupe::test {
std::vector<std::string> mutant_names() { return {"@names@"}; }
}
]])

# The copies come before the libraries of the rooms, whose own objects are then not taken.
add_executable(model_mutants model_mutants.cpp ${mutated_sources}
  "${CMAKE_CURRENT_BINARY_DIR}/mutated/mutant_names.cpp" $<TARGET_OBJECTS:troupe_model>)
target_link_libraries(model_mutants PRIVATE ${model_libraries})
target_compile_definitions(model_mutants PRIVATE NDEBUG)
target_compile_options(model_mutants PRIVATE -w -ffp-contract=off)
