// Rules 11 and 12: the limits that a plan sets, and what happens at them.
#include "schedule_fixture.hpp"

#include <doctest/doctest.h>

#include <string>

namespace troupe::testing {
namespace {

TEST_CASE("rule 11: a schedule plan takes classes, depth and names from the memory plan") {
  Model model;
  const UnitId embed = model.add_unit("embed");
  model.add_parameter(embed, {.name = "tokens", .shape = {4096}});
  for (const char* name : {"block.0", "block.1", "block.2", "block.3"}) {
    const UnitId block = model.add_unit(name);
    model.add_parameter(block, {.name = "w", .shape = {1024}});
    model.add_parameter(block, {.name = "table", .shape = {1024}, .trainable = false});
  }
  const BucketPlan buckets = plan_buckets(model);
  std::vector<BucketLayout> layouts;
  layouts.reserve(buckets.buckets.size());
  for (const Bucket& bucket : buckets.buckets) {
    layouts.emplace_back(std::vector<std::int64_t>{bucket.numel}, 2, 1);
  }
  const auto memory = plan_memory(model, buckets, layouts, {});
  REQUIRE(memory.ok());
  const SchedulePlan plan = make_schedule_plan(model, buckets, memory.value());

  REQUIRE(plan.slot_classes.size() == 2);
  CHECK(plan.slot_classes[0].count == 1);
  CHECK(plan.slot_classes[0].option == "outsized_slots");
  CHECK(plan.slot_classes[1].first == 1);
  CHECK(plan.slot_classes[1].count == 6);  // three blocks of two buckets
  CHECK(plan.prefetch_depth == 5);
  REQUIRE(plan.gradient_classes.size() == 2);
  CHECK(plan.gradient_classes[1].count == 2);
  CHECK(plan.slot_class[1] == 1);
  CHECK(plan.gradient_class[1] == 1);
  CHECK(plan.gradient_class[2] == SchedulePlan::no_class);
  CHECK(plan.unit_buckets[1] == std::vector<BucketId>{1, 2});
  CHECK(plan.unit_names[1] == "block.0");
  CHECK(plan.bucket_names[2] == "2 'block.0' (table)");
}

TEST_CASE("rule 11: a schedule plan takes the rules of the strategy, and an order from the model") {
  Model model;
  const UnitId embed = model.add_unit("embed");
  model.add_parameter(embed, {.name = "tokens", .shape = {8}});
  const UnitId block = model.add_unit("block");
  model.add_parameter(block, {.name = "w", .shape = {8}});
  model.add_parameter(block, {.name = "table", .shape = {8}, .trainable = false});
  model.add_parameter(block, {.name = "expert", .shape = {8}, .group = "ep"});
  const UnitId head = model.add_unit("head");
  model.add_parameter(head, {.name = "w", .shape = {8}});
  model.tie(head, "out", embed, "tokens");
  model.add_parameter({.name = "scale", .shape = {8}});  // of the root unit
  const BucketPlan buckets = plan_buckets(model);
  std::vector<BucketLayout> layouts;
  layouts.reserve(buckets.buckets.size());
  for (const Bucket& bucket : buckets.buckets) {
    layouts.emplace_back(std::vector<std::int64_t>{bucket.numel}, 2, 1);
  }
  const auto memory = plan_memory(model, buckets, layouts, {});
  REQUIRE(memory.ok());
  const SchedulePlan plan = make_schedule_plan(
      model, buckets, memory.value(),
      {.agreed = true, .regather = true, .replica_sum = ReplicaSum::at_step_end});
  REQUIRE(plan.bucket_names.size() == 6);
  CHECK(plan.bucket_names[2] == "2 'block' (table)");
  CHECK(plan.bucket_names[3] == "3 'block' (expert)");
  CHECK(plan.bucket_names[4] == "4 'head' (w)");
  CHECK(plan.agreed);
  CHECK(plan.first_order.gathers == std::vector<BucketId>{0, 1, 2, 3, 4, 5});
  // Backward: the head, the block, the tied embedding last; the root unit is around them all.
  CHECK(plan.first_order.reduces == std::vector<BucketId>{4, 1, 3, 0, 5});
  CHECK(plan.regathers == std::vector<bool>{true, true, true, false, true, true});
  CHECK(plan.replica_sum == ReplicaSum::at_step_end);

  const SchedulePlan plain = make_schedule_plan(model, buckets, memory.value());
  CHECK_FALSE(plain.agreed);
  CHECK(plain.first_order.gathers.empty());
  CHECK(plain.regathers.empty());
  CHECK(plain.replica_sum == ReplicaSum::none);
}

TEST_CASE("rule 12: a gradient slot that an open backward holds is named") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 3, 0, 1));
  trainer.forwards({0, 1, 2});
  trainer.backward(2);
  CHECK(trainer.backward(1) ==
        "refused: backward of unit 'b' needs 1 more gradient slot, but of `gradient_slots` = 1, 1 "
        "are held by: bucket 2 'c', open backward of unit 'c'; `gradient_slots` = 2 would do");
  trainer.end_backward(2);
  CHECK(trainer.backward(1) == "use 1, contribute 1");
}

TEST_CASE("rule 12: so is one whose bucket still waits for a backward") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0, 1));
  trainer.forwards({0, 1, 1});
  trainer.backwards({1});
  CHECK(trainer.backward(0) ==
        "refused: backward of unit 'a' needs 1 more gradient slot, but of `gradient_slots` = 1, 1 "
        "are held by: bucket 1 'b', after 1 of 2 backwards; `gradient_slots` = 2 would do");
}

TEST_CASE("rule 12: a tied bucket with a class of its own is in nobody's way") {
  SchedulePlan plan = plan_of({{0}, {1}, {0, 2}}, 3, 0, 1);
  plan.gradient_class = {1, 0, 0};
  plan.gradient_classes = {{0, 1, "gradient_slots"}, {1, 1, ""}};
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  trainer.forwards({0, 1, 2});
  CHECK(trainer.backward(2) == "use 0, use 2, contribute 0, contribute 2");
  CHECK(trainer.schedule.decisions()[2].slot == 1);
  CHECK(trainer.schedule.decisions()[3].slot == 0);
  trainer.end_backward(2);
  CHECK(trainer.backward(1) == "use 1, contribute 1");
}

TEST_CASE("a unit larger than its class, which the memory plan would refuse, is refused as well") {
  Trainer trainer = trainer_in_micro_batch(plan_of({{0, 1}}, 1, 0, 1));
  CHECK(trainer.forward(0) ==
        "refused: forward of unit 'a' needs 2 more slots, but of `slots` = 1 all are free; "
        "`slots` = 2 would do");
}

TEST_CASE("a refused event changes nothing") {
  const auto run = [](bool with_refused) {
    Trainer trainer = trainer_in_micro_batch(uniform_plan(4, 2, 1, 1));
    std::string log;
    trainer.forwards({0, 1});
    log += trainer.forward(2) + "\n";
    if (with_refused) {
      trainer.micro_batch();
      trainer.step_end();
      trainer.begin_update();
      trainer.end_eval();
      trainer.end_micro_batch();
      CHECK(trainer.schedule.decisions().empty());
    }
    log += trainer.backward(2) + "\n" + trainer.backward(2) + "\n";
    if (with_refused) {
      CHECK(trainer.backward(3).starts_with("refused: backward of unit 'd' needs 1 more gradient"));
      trainer.forward(1);
      CHECK(trainer.forward(0).starts_with("refused: recompute of unit 'a' needs 1 more slot"));
      trainer.end_forward(1);
    } else {
      trainer.forward(1);
      trainer.end_forward(1);
    }
    log += trainer.end_backward(2) + "\n" + trainer.end_backward(2) + "\n" + trainer.end_forward(2);
    trainer.end_micro_batch();
    log += trainer.step_end();
    return std::pair(log, trainer.schedule.predicted(false));
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("counters add up") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(4, 2, 1));
  trainer.forwards({0, 1, 2, 3, 0});
  trainer.backwards({3, 2, 1, 0});
  trainer.end_micro_batch();
  trainer.step_end();
  const ScheduleCounters& counters = trainer.schedule.counters();
  CHECK(counters.uses == 9);
  CHECK(counters.hits + counters.misses == counters.uses);
  CHECK(counters.gathers == counters.prefetch_hits + counters.misses + counters.evicted_unused);
  CHECK(counters.reduces == 4);
  CHECK(trainer.schedule.next_ticket() == 1 + counters.gathers + counters.reduces);
}

TEST_CASE("a unit without buckets can be used") {
  Trainer trainer = trainer_in_micro_batch(plan_of({{0}, {}, {1}}, 2, 1, 1));
  CHECK(trainer.forward(1) == "");
  CHECK(trainer.schedule.used().empty());
  CHECK(trainer.backward(1) == "");
  CHECK(trainer.end_backward(1) == "");
  CHECK(trainer.end_forward(1) == "");
}

}  // namespace
}  // namespace troupe::testing
