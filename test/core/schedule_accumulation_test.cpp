// [Note: accumulation]: micro-batches that leave their gradients to later ones.
#include "schedule_fixture.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {
namespace {

/// Every trainable bucket has a gradient slot of its own, of the same number.
SchedulePlan accumulating(SchedulePlan plan) {
  plan.accumulates = true;
  plan.gradient_classes.clear();
  for (BucketId bucket = 0; bucket < plan.gradient_class.size(); ++bucket) {
    if (plan.gradient_class[bucket] != SchedulePlan::no_class) {
      plan.gradient_class[bucket] = static_cast<std::uint32_t>(plan.gradient_classes.size());
    }
    plan.gradient_classes.push_back({bucket, 1, ""});
  }
  return plan;
}

/// A trainer whose first micro-batch, which does not reduce, has begun.
Trainer trainer_without_reduce(SchedulePlan plan) {
  Trainer trainer(accumulating(std::move(plan)));
  trainer.update_all();
  trainer.micro_batch(false);
  return trainer;
}

TEST_CASE("accumulation: a plan whose gradient slots are used in turn refuses it") {
  Trainer trainer(uniform_plan(2, 2, 0));
  trainer.update_all();
  const std::string refusal =
      "refused: a micro-batch that does not reduce leaves its gradients in buffers that stay; that "
      "needs `free_full_gradients` = false";
  CHECK(trainer.micro_batch(false) == refusal);
  CHECK(trainer.forward(0).starts_with("refused: forward of unit 'a' outside a micro-batch"));
  CHECK(trainer.micro_batch() == "");
  CHECK(trainer.micro_batch(false) ==
        "refused: a micro-batch cannot begin inside another micro-batch");
}

TEST_CASE("accumulation: neither a complete bucket is reduced nor what is left at the end") {
  Trainer trainer = trainer_without_reduce(uniform_plan(3, 3, 0));
  trainer.forwards({0, 1, 2, 2});
  trainer.backward(2);
  CHECK(trainer.end_backward(2) == "release 2");
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1");
  CHECK(trainer.end_micro_batch() == "");
  CHECK(trainer.schedule.gradient_slots_in_use(1) == 1);
  CHECK(trainer.schedule.gradient_slots_in_use(2) == 1);
  CHECK(trainer.schedule.counters().reduces == 0);
}

TEST_CASE("accumulation: the next micro-batch adds, and one that reduces does so early") {
  Trainer trainer = trainer_without_reduce(uniform_plan(2, 2, 0));
  trainer.forwards({0, 1});
  CHECK(trainer.backward(1) == "use 1, contribute 1");
  CHECK(trainer.schedule.used()[0].first_contribution);
  trainer.end_backward(1);
  trainer.end_micro_batch();
  trainer.micro_batch(false);
  trainer.forwards({1});
  CHECK(trainer.backward(1) == "use 1");
  CHECK_FALSE(trainer.schedule.used()[0].first_contribution);
  CHECK(trainer.schedule.used()[0].gradient_slot == 1);
  CHECK(trainer.end_backward(1) == "release 1");
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({1});
  CHECK(trainer.backward(1) == "use 1");
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
  CHECK(trainer.end_micro_batch() == "");
}

TEST_CASE("accumulation: counts are those of one micro-batch") {
  Trainer trainer = trainer_without_reduce(uniform_plan(2, 2, 0));
  trainer.forwards({0, 1, 1, 1});
  trainer.backwards({1});
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({1});
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
}

TEST_CASE("accumulation: what was filled and is not used again is reduced at the end") {
  Trainer trainer = trainer_without_reduce(uniform_plan(4, 4, 0));
  trainer.forwards({0, 1, 2, 3});
  trainer.backwards({3, 2, 0});
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({1, 2});
  trainer.backward(2);
  CHECK(trainer.end_backward(2) == "release 2, reduce 2");
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
  CHECK(trainer.end_micro_batch() == "reduce 0, reduce 3");
}

TEST_CASE("accumulation: a step end reduces what the last micro-batches have left") {
  SchedulePlan plan = uniform_plan(3, 3, 0);
  plan.replica_sum = ReplicaSum::at_step_end;
  Trainer trainer = trainer_without_reduce(std::move(plan));
  trainer.forwards({0, 2});
  trainer.backwards({2});
  trainer.end_micro_batch();
  trainer.eval();
  trainer.forwards({1});
  trainer.end_eval();
  trainer.micro_batch(false);
  trainer.forwards({0});
  trainer.backwards({0});
  trainer.end_micro_batch();
  CHECK(trainer.step_end() ==
        "reduce 0, reduce 2, sum_replicas 0, sum_replicas 2, step_end 0, step_end 1, step_end 2");
  CHECK(launched(trainer.schedule) ==
        "reduce 0 at 4, reduce 2 at 5, sum_replicas 0 at 6, sum_replicas 2 at 7");
  CHECK(trainer.step_end() == "");
}

TEST_CASE("accumulation: no update comes between") {
  Trainer trainer = trainer_without_reduce(uniform_plan(2, 2, 0));
  CHECK(trainer.begin_update() == "");  // nothing is filled yet, and nothing held
  trainer.update_all();
  trainer.forwards({0, 1});
  trainer.backwards({1});
  CHECK(trainer.begin_update().starts_with(
      "refused: an update cannot begin while gradients are being accumulated: bucket 1 'b'"));
  trainer.end_micro_batch();
  const std::string refusal =
      "refused: an update cannot begin while gradients are being accumulated: the last micro-batch "
      "did not reduce them; let one reduce, or finish the gradients first";
  CHECK(trainer.begin_update() == refusal);
  trainer.micro_batch();
  CHECK(trainer.begin_update() == refusal);
  trainer.end_micro_batch();
  CHECK(trainer.begin_update() == "step_end 0, step_end 1");
}

TEST_CASE(
    "accumulation, agreed order: nothing is reduced, no zeros either, and order is recorded") {
  Trainer trainer = trainer_without_reduce(agreed_plan(one_bucket_each(3), 3));
  trainer.forwards({0, 2, 1});
  trainer.backwards({1});
  trainer.backward(2);
  CHECK(trainer.end_backward(2) == "release 2");
  trainer.backwards({0});
  CHECK(trainer.end_micro_batch() == "");
  CHECK(trainer.step_end() == "reduce 2, reduce 1, reduce 0, step_end 0, step_end 1, step_end 2");
  CHECK(trainer.schedule.recorded() == AgreedOrder{.gathers = {0, 2, 1}, .reduces = {1, 2, 0}});
}

TEST_CASE("accumulation, agreed order: each bucket is reduced once, as zeros if never filled") {
  Trainer trainer = trainer_without_reduce(agreed_plan(one_bucket_each(4), 4));
  trainer.forwards({0, 2});
  trainer.backwards({2, 0});
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({0, 1});
  trainer.backward(1);
  // 3 was never filled, 2 not in this micro-batch: neither blocks what is complete.
  CHECK(trainer.end_backward(1) == "release 1, contribute 3, reduce 3, reduce 2, reduce 1");
  CHECK(trainer.schedule.counters().zero_reduces == 1);
  CHECK(trainer.backward(2).starts_with("refused: backward of unit 'c': the gradient of bucket 2"));
  CHECK(trainer.end_micro_batch() == "reduce 0");
  trainer.micro_batch(false);
  CHECK(trainer.end_micro_batch() == "");
  CHECK(trainer.step_end().starts_with(
      "contribute 3, reduce 3, contribute 2, reduce 2, contribute 1, reduce 1, contribute 0, "
      "reduce 0, step_end 0"));
  CHECK(trainer.step_end() == "");
}

TEST_CASE("accumulation, agreed order: one whose backward is open is waited for") {
  Trainer trainer = trainer_without_reduce(agreed_plan(one_bucket_each(2), 2));
  trainer.forwards({1});
  trainer.backwards({1});
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.backward(1);  // without a forward
  trainer.backward(0);
  CHECK(trainer.end_backward(0) == "release 0");
  CHECK(trainer.end_backward(1) == "release 1, reduce 1, reduce 0");
}

TEST_CASE("accumulation, agreed order: ranks that filled nothing refuse an update as the others") {
  for (const std::vector<UnitId>& units : {std::vector<UnitId>{0, 1}, std::vector<UnitId>{}}) {
    Trainer trainer = trainer_without_reduce(agreed_plan(one_bucket_each(2), 2));
    trainer.forwards(units);
    trainer.backwards(units);
    trainer.end_micro_batch();
    CHECK(trainer.begin_update().starts_with("refused: an update cannot begin while gradients"));
    trainer.step_end();
    CHECK(trainer.begin_update() == "");
  }
}

TEST_CASE("accumulation, agreed order: ranks that use different units launch alike") {
  const auto launches_of = [](const std::vector<std::vector<UnitId>>& micro_batches) {
    Trainer trainer(accumulating(agreed_plan(one_bucket_each(3), 1)));
    trainer.update_all();
    bool reduces = false;
    for (const std::vector<UnitId>& units : micro_batches) {
      trainer.micro_batch(reduces);
      trainer.forwards(units);
      trainer.backwards({units.rbegin(), units.rend()});
      trainer.end_micro_batch();
      reduces = !reduces;
    }
    trainer.step_end();
    return trainer.launches;
  };
  const std::string all = launches_of({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}});
  CHECK(all ==
        "gather 0 at 1, gather 1 at 2, gather 2 at 3, reduce 2 at 4, reduce 1 at 5, reduce 0 at 6, "
        "reduce 2 at 7, reduce 1 at 8, reduce 0 at 9");
  CHECK(launches_of({{1, 2}, {0}, {}}) == all);
  CHECK(launches_of({{}, {}, {2}}) == all);
}

}  // namespace
}  // namespace troupe::testing
