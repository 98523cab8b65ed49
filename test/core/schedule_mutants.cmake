# Bugs seeded in the schedule, each of which the property test has to find.
set(schedule_mutant_test ${schedule_property} schedule_property_main.cpp)

# schedule_mutant(<bug> <file in core/> <from> <to>)
function(schedule_mutant bug file from to)
  troupe_mutant(schedule_${bug}
    SOURCE core/${file}
    FROM "${from}"
    TO "${to}"
    TEST ${schedule_mutant_test}
    LINK troupe::core)
endfunction()

troupe_mutant(schedule_none CONTROL
  SOURCE core/schedule.cpp
  TEST ${schedule_mutant_test}
  LINK troupe::core)

# Pins and slots.
schedule_mutant(evicts_in_use schedule_steps.cpp
  "buckets_[candidate].uses > 0" "false")
schedule_mutant(loses_releases schedule_steps.cpp
  "--view.uses;" "view.uses -= event_ % 17 == 0 ? 0 : 1;")
schedule_mutant(counts_release_twice schedule_steps.cpp
  "--view.uses;" "view.uses -= view.uses > 1 ? 2 : 1;")
schedule_mutant(pins_late schedule.cpp
  "    if (used.hit) {
      pin(used);
    }
  }
  for (UsedBucket& used : used_) {
    if (!used.hit) {"
  "    if (held(used.bucket)) {
      pin(used);
    } else {")
schedule_mutant(demands_without_room schedule_refusals.cpp
  "classes_[index].pinned + wanted_[index] > plan_.slot_classes[index].count" "false")
schedule_mutant(keeps_at_step_end schedule_steps.cpp
  "    if (held(bucket) && !may_stay(bucket)) {
      drop(bucket, Command::step_end);"
  "    if (held(bucket) && bucket != 0) {
      drop(bucket, Command::step_end);")
schedule_mutant(refuses_too_early schedule_refusals.cpp
  "wanted_[index] += buckets_[bucket].uses == 0 ? 1U : 0U;" "wanted_[index] += 1U;")
schedule_mutant(takes_newest_slot schedule.cpp
  "const SlotId slot = ring_[head_];
  head_ = (head_ + 1) % ring_.size();"
  "const SlotId slot = ring_[(head_ + count_ - 1) % ring_.size()];")

# Victims and prefetches.
schedule_mutant(picks_any_victim schedule_steps.cpp
  "return next > victim_next;" "static unsigned calls = 0; return ++calls % 3 == 0;")
schedule_mutant(ignores_age_of_release schedule_steps.cpp
  "released != victim_released ? released < victim_released : candidate < victim" "candidate < victim")
schedule_mutant(does_harm schedule_steps.cpp
  " || (position && victim_next <= *position)" "")
schedule_mutant(prefetches_stale schedule_steps.cpp
  "buckets_[bucket].stale || unused_count_" "unused_count_")
schedule_mutant(prefetches_too_deep schedule_steps.cpp
  "unused_count_ >= depth" "unused_count_ > depth")
schedule_mutant(forgets_interrupted_training schedule_steps.cpp
  "|| !in_eval_ || train_.cursor() == 0" "|| true")
schedule_mutant(scan_skips_dropped use_order.cpp
  "scan_ = std::min(scan_, next_position(bucket));" "")
schedule_mutant(scan_stays_ahead_of_cursor use_order.cpp
  "position < cursor_ ? position : std::max(scan_, position)" "std::max(scan_, position)")
schedule_mutant(seeks_beyond_segment use_order.cpp
  "if (found < end)" "if (found < size())")
schedule_mutant(keeps_unused_of_eval schedule.cpp
  "view.gathered_in_eval && !view.used" "false")

# Gradients.
schedule_mutant(loses_reduces schedule.cpp
  "if (view.gradient_slot != no_slot && view.backwards_open" "if (bucket != 1 && view.gradient_slot != no_slot && view.backwards_open")
schedule_mutant(reduces_too_early schedule.cpp
  "view.backwards_ended >= view.forwards_begun" "true")
schedule_mutant(reduces_under_open_backward schedule.cpp
  "view.backwards_open == 0 &&" "")
schedule_mutant(count_survives_micro_batch schedule.cpp
  "    buckets_[bucket].forwards_begun = 0;\n" "")
schedule_mutant(counts_recomputations schedule.cpp
  "use.pass == Pass::forward && !in_eval_" "!in_eval_")

# Refusals.
schedule_mutant(refused_begin_moves_cursor schedule.cpp
  "  if (auto refused = refuse_begin(unit, backward)) {"
  "  order().seek({unit, pass_of(backward)});
  if (auto refused = refuse_begin(unit, backward)) {")
