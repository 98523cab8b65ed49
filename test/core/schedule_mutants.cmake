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
  "    bucket.forwards_begun = 0;\n" "")
schedule_mutant(counts_recomputations schedule.cpp
  "use.pass == Pass::forward && !in_eval_" "!in_eval_")

# Refusals.
schedule_mutant(refused_begin_moves_cursor schedule.cpp
  "  if (auto refused = refuse_begin(unit, backward)) {"
  "  order().seek({unit, pass_of(backward)});
  if (auto refused = refuse_begin(unit, backward)) {")

# The agreed order.
schedule_mutant(gathers_out_of_order schedule.cpp
  "gather_in_order(buckets_[used.bucket].gather_place + 1);  // nothing there is stale"
  "gather(used.bucket);")
schedule_mutant(passes_over_stale schedule_agreed.cpp
  "    if (buckets_[bucket].stale) {
      return;
    }
    if (!held(bucket)) {"
  "    if (buckets_[bucket].stale && !held(bucket)) {
      return;
    }
    if (!held(bucket)) {")
schedule_mutant(backward_leaves_gathers schedule.cpp
  "    gather_rest();
    relieve(unit);"
  "    relieve(unit);")
schedule_mutant(micro_batch_leaves_gathers schedule.cpp
  "    gather_rest();
  }
  if (reduces_) {"
  "  }
  if (reduces_) {")
schedule_mutant(zeros_find_no_slot schedule_steps.cpp
  "    relieve_zeros();\n" "")
schedule_mutant(records_parts_of_a_bucket schedule_agreed.cpp
  "buckets_[bucket].forwards_begun < unit_count_[bucket]" "false")
schedule_mutant(left_out_goes_first schedule_agreed.cpp
  "in_order[record[taken]] < in_order[bucket]" "false")
schedule_mutant(micro_batches_mix schedule_agreed.cpp
  "by_time && std::ranges::none_of(next, in_common)" "false")
schedule_mutant(eval_leaves_gathers schedule.cpp
  "  if (plan_.agreed) {
    gather_rest();
  }
  for (BucketId"
  "  for (BucketId")
schedule_mutant(update_leaves_gathers schedule.cpp
  "plan_.agreed && in_micro_batch_" "false")
schedule_mutant(updates_are_not_awaited schedule_agreed.cpp
  "  reached_ = agreed_.gathers.size();
  gather_in_order(reached_);"
  "  gather_in_order(agreed_.gathers.size());")
schedule_mutant(backward_among_stale schedule_refusals.cpp
  "backward ? agreed_.gathers.size() : 0;" "0;")
schedule_mutant(reached_survives_update schedule_steps.cpp
  "  reached_ = 0;\n" "")
schedule_mutant(drops_frozen schedule_agreed.cpp
  "return plan_.agreed && !trains(bucket);" "return false;")
schedule_mutant(keeps_what_has_changed schedule.cpp
  "changed && held(bucket) && buckets_[bucket].stale" "false")
schedule_mutant(forgets_zeros schedule_agreed.cpp
  "!(waiting > 0 && unused)" "true")
schedule_mutant(zeros_for_what_is_to_come schedule_agreed.cpp
  "view.forwards_begun == 0 && view.backwards_open == 0" "view.backwards_open == 0")
schedule_mutant(reduces_without_waiting schedule.cpp
  "        } else if (reduces_) {
          reduce(bucket);"
  "        }
        if (reduces_) {
          reduce(bucket);")
schedule_mutant(waits_after_more schedule_steps.cpp
  "  no_longer_waits(used.bucket);\n" "")
schedule_mutant(relieves_nobody schedule_refusals.cpp
  "if (waiting_in(index) == 0)" "if (true)")
schedule_mutant(relieves_other_classes schedule_agreed.cpp
  "buckets_[bucket].waiting && !adds && plan_.gradient_class[bucket] == index"
  "buckets_[bucket].waiting && !adds")
schedule_mutant(reduced_survives_micro_batch schedule_agreed.cpp
  "    buckets_[bucket].reduced = false;\n" "")
schedule_mutant(record_survives_step schedule_agreed.cpp
  "    buckets_[bucket].gather_recorded = false;\n" "")
schedule_mutant(records_eval schedule_agreed.cpp
  "!in_eval_ && !std::exchange(view.gather_recorded, true)"
  "!std::exchange(view.gather_recorded, true)")
schedule_mutant(adopts_places_late schedule_agreed.cpp
  "  agreed_ = std::move(order);
  index_order();"
  "  agreed_ = std::move(order);")

# Accumulation.
schedule_mutant(accumulates_without_buffers schedule.cpp
  "if (!reduces && !plan_.accumulates)" "if (false)")
schedule_mutant(reduces_what_should_stay schedule.cpp
  "} else if (reduces_) {" "} else {")
schedule_mutant(end_reduces_what_should_stay schedule.cpp
  "  if (reduces_) {
    reduce_rest();"
  "  if (reduces_ || !plan_.agreed) {
    reduce_rest();")
schedule_mutant(order_reduces_what_should_stay schedule_agreed.cpp
  "  if (!reduces_) {
    return;
  }
"
  "")
schedule_mutant(step_loses_what_is_left schedule.cpp
  "  if (std::exchange(left_, false)) {
    reduce_rest();
  }"
  "  left_ = false;")
schedule_mutant(left_is_forgotten_without_gradients schedule.cpp
  "left_ = !reduces_;" "left_ = !reduces_ && filling_count_ > 0;")
schedule_mutant(left_survives_a_reduce schedule.cpp
  "left_ = !reduces_;" "left_ = left_ || !reduces_;")
schedule_mutant(what_is_left_waits_for_the_end schedule_agreed.cpp
  "const bool unused = view.forwards_begun == 0"
  "const bool unused = view.gradient_slot == no_slot && view.forwards_begun == 0")
schedule_mutant(open_backward_is_unused schedule_agreed.cpp
  "view.forwards_begun == 0 && view.backwards_open == 0" "view.forwards_begun == 0")
schedule_mutant(updates_what_is_left schedule_refusals.cpp
  "if (left_ && (plan_.agreed || filling_count_ > 0))" "if (left_ && filling_count_ > 0)")

# Groups.
schedule_mutant(regathers_old_version schedule_steps.cpp
  "    buckets_[bucket].kept = false;\n" "")
schedule_mutant(never_regathers schedule_steps.cpp
  "tell(again ? Command::regather : Command::gather," "tell(Command::gather,")
schedule_mutant(sum_takes_no_ticket schedule_steps.cpp
  "  next_ticket_ += plan_.replica_sum == ReplicaSum::every_reduce ? 1U : 0U;\n" "")
schedule_mutant(slot_is_free_before_sum schedule_steps.cpp
  "last_reduce_[view.gradient_slot] = next_ticket_ - 1;" "last_reduce_[view.gradient_slot] = ticket;")
schedule_mutant(sums_forever schedule.cpp
  "      buckets_[bucket].reduced_in_step = false;\n" "")
schedule_mutant(reshards_open_uses schedule.cpp
  "held(bucket) && buckets_[bucket].uses == 0" "held(bucket)")
