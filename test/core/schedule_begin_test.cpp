// Rules 3 to 5: what a begin does, and how room is made.
#include "schedule_fixture.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {
namespace {

TEST_CASE("rule 3: held buckets are pinned first, then each absent one gets room, in plan order") {
  Trainer trainer = trainer_in_micro_batch(plan_of({{0}, {1, 2, 3}, {4}}, 3, 1, 3));
  CHECK(trainer.forward(0) == "use 0, gather 1");
  trainer.end_forward(0);
  CHECK(
      trainer.backward(1) ==
      "use 1, gather 2, use 2, evict 0, gather 3, use 3, contribute 1, contribute 2, contribute 3");
}

TEST_CASE("rule 3: a bucket of the unit itself is never evicted for another one of it") {
  Trainer trainer = trainer_in_micro_batch(plan_of({{0, 1}, {2}, {3}}, 2, 0, 2));
  trainer.forwards({0, 2});  // 0 went for 3; of 1 and 3, 1 is used later and would go next
  CHECK(trainer.forward(0) == "use 1, evict 3, gather 0, use 0");
}

TEST_CASE("rule 3: prefetches come last, behind the gradient slots") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 1));
  trainer.backwards({0});
  trainer.forwards({1});
  trainer.end_micro_batch();
  trainer.step_end();
  trainer.update_all();
  trainer.micro_batch();
  CHECK(trainer.backward(0) == "use 0, contribute 0, gather 1");
}

TEST_CASE("rule 3: used() tells slot, gather and gradient of each bucket in plan order") {
  Trainer trainer = trainer_in_micro_batch(plan_of({{0}, {1, 2}}, 3, 1, 3));
  trainer.schedule.set_next_ticket(40);
  trainer.forward(0);  // its prefetch of bucket 1 is ticket 40
  trainer.backward(1);
  const std::vector<UsedBucket>& used = trainer.schedule.used();
  REQUIRE(used.size() == 2);
  CHECK(used[0].bucket == 1);
  CHECK(used[0].hit);
  CHECK(used[0].slot == 1);
  CHECK(used[0].gather == 40);
  CHECK(used[0].gradient_slot == 0);
  CHECK(used[0].first_contribution);
  CHECK(used[0].previous_reduce == 0);
  CHECK(used[1].bucket == 2);
  CHECK_FALSE(used[1].hit);
  CHECK(used[1].slot == 2);
  CHECK(used[1].gather == 41);
  CHECK(used[1].gradient_slot == 1);
}

TEST_CASE("rule 3: a frozen bucket is used in backward and takes no gradient slot") {
  SchedulePlan plan = uniform_plan(2, 2, 0);
  plan.gradient_class = {SchedulePlan::no_class, 0};
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  trainer.forwards({0, 1});
  trainer.backwards({1});
  CHECK(trainer.backward(0) == "use 0");
  CHECK(trainer.schedule.used()[0].gradient_slot == no_slot);
  CHECK(trainer.end_backward(0) == "release 0");
}

TEST_CASE("rule 3: gradient slots are taken in turn, and name the reduce that read them last") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 3, 0, 2));
  trainer.forwards({0, 1, 2});
  std::vector<SlotId> slots;
  std::vector<Ticket> previous;
  for (const UnitId unit : {2U, 1U, 0U}) {
    trainer.backward(unit);
    slots.push_back(trainer.schedule.used()[0].gradient_slot);
    previous.push_back(trainer.schedule.used()[0].previous_reduce);
    trainer.end_backward(unit);
  }
  CHECK(slots == std::vector<SlotId>{0, 1, 0});
  CHECK(previous == std::vector<Ticket>{0, 0, 4});  // tickets 1 to 3 were gathers
}

TEST_CASE("rule 3: a second backward of a filling bucket contributes to the same slot") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.forwards({0, 1, 1});
  trainer.backward(1);
  trainer.end_backward(1);
  CHECK(trainer.backward(1) == "use 1");
  CHECK(trainer.schedule.used()[0].gradient_slot == 0);
  CHECK_FALSE(trainer.schedule.used()[0].first_contribution);
}

TEST_CASE("rule 4: the slot that has been free for the longest time is taken") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 3, 0));
  trainer.forwards({2, 1, 0});  // slots 0, 1, 2
  trainer.end_micro_batch();
  trainer.step_end();  // gives back in bucket order: slots 2, 1, 0
  trainer.update_all();
  trainer.micro_batch();
  std::vector<SlotId> slots;
  for (const UnitId unit : {0U, 1U, 2U}) {
    trainer.forward(unit);
    slots.push_back(trainer.schedule.used()[0].slot);
  }
  CHECK(slots == std::vector<SlotId>{2, 1, 0});
}

TEST_CASE("rule 4: the bucket whose next use is farthest is evicted") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(4, 2, 0));
  trainer.forwards({0, 1});
  CHECK(trainer.forward(2) == "evict 0, gather 2, use 2");  // backward comes to 1 before 0
  trainer.end_forward(2);
  CHECK(trainer.forward(3) == "evict 1, gather 3, use 3");
}

TEST_CASE("rule 4: of equally far ones the one released longest ago is evicted") {
  Trainer trainer(uniform_plan(4, 3, 0));
  trainer.update_all();
  trainer.eval();
  trainer.forwards({2, 0, 1});  // none of them is predicted again
  CHECK(trainer.forward(3) == "evict 2, gather 3, use 3");
}

TEST_CASE("rule 4: of those released together the lowest is evicted") {
  Trainer trainer(plan_of({{1, 0}, {2}}, 2, 0, 2));
  trainer.update_all();
  trainer.eval();
  trainer.forwards({0});
  CHECK(trainer.forward(1) == "evict 0, gather 2, use 2");
}

TEST_CASE("rule 4: a bucket that is still gathering may be evicted") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(4, 2, 1));
  CHECK(trainer.forward(0) == "use 0, gather 1");
  CHECK(trainer.forward(3) == "evict 1, gather 3, use 3");
  CHECK(trainer.schedule.counters().evicted_unused == 1);
}

TEST_CASE("rule 4: room is made within the class of the bucket") {
  SchedulePlan plan = uniform_plan(4, 1, 0);
  plan.slot_class = {0, 1, 1, 0};
  plan.slot_classes = {{0, 1, "outsized_slots"}, {1, 1, "slots"}};
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  CHECK(trainer.forward(0) == "gather 0, use 0");
  CHECK(trainer.schedule.used()[0].slot == 0);
  trainer.end_forward(0);
  CHECK(trainer.forward(1) == "gather 1, use 1");
  CHECK(trainer.schedule.used()[0].slot == 1);
  trainer.end_forward(1);
  CHECK(trainer.forward(2) == "evict 1, gather 2, use 2");
  trainer.end_forward(2);
  CHECK(trainer.forward(3) == "evict 0, gather 3, use 3");
}

TEST_CASE("rule 5: a demand evicts even what is needed next") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 1, 1));
  trainer.forwards({0});
  CHECK(trainer.schedule.held(1));
  CHECK(trainer.forward(0) == "evict 1, gather 0, use 0");
}

TEST_CASE("rule 5: with nothing to evict, the open uses and the limit that would do are named") {
  Trainer trainer = trainer_in_micro_batch(plan_of({{0}, {1}, {2, 3}}, 2, 0, 4));
  trainer.forward(0);
  trainer.backward(1);
  CHECK(
      trainer.forward(2) ==
      "refused: recompute of unit 'c' needs 2 more slots, but of `slots` = 2, 2 are pinned by open "
      "uses: forward of unit 'a', backward of unit 'b'; `slots` = 4 would do");
  CHECK(trainer.schedule.decisions().empty());
}

TEST_CASE("rule 5: uses of one unit inside each other pin its buckets once") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 1, 0));
  CHECK(trainer.forward(0) == "gather 0, use 0");
  CHECK(trainer.forward(0) == "use 0");
  CHECK(trainer.schedule.open_uses(0) == 2);
  CHECK(trainer.end_forward(0) == "release 0");
  CHECK(trainer.forward(1).starts_with("refused: forward of unit 'b' needs 1 more slot"));
  CHECK(trainer.end_forward(0) == "release 0");
  CHECK(trainer.forward(1) == "evict 0, gather 1, use 1");
}

TEST_CASE("a gather after the first one since an update goes through the smaller group") {
  SchedulePlan plan = uniform_plan(2, 1, 0);
  plan.regathers = {true, false};  // bucket 1 has a group of its own
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  CHECK(trainer.forward(0) == "gather 0, use 0");
  trainer.end_forward(0);
  CHECK(trainer.forward(1) == "evict 0, gather 1, use 1");
  trainer.end_forward(1);
  CHECK(trainer.forward(0) == "evict 1, regather 0, use 0");
  CHECK(launched(trainer.schedule) == "regather 0 at 3");
  CHECK(trainer.schedule.used()[0].gather == 3);
  trainer.end_forward(0);
  CHECK(trainer.forward(1) == "evict 0, gather 1, use 1");
  trainer.end_forward(1);
  CHECK(trainer.begin_update() == "step_end 1");
  trainer.update_all();
  CHECK(trainer.forward(0) == "gather 0, use 0");
  trainer.end_forward(0);
  trainer.end_micro_batch();
  CHECK(trainer.step_end() == "step_end 0");
  trainer.update_all();
  trainer.micro_batch();
  CHECK(trainer.forward(0) == "gather 0, use 0");
  CHECK(trainer.schedule.counters().gathers == 6);
  CHECK(trainer.schedule.counters().regathers == 1);
}

TEST_CASE("a reshard gives back what is not in use, and the next gather is a regather") {
  SchedulePlan plan = uniform_plan(3, 3, 0);
  plan.regathers = {true, true, true};
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  trainer.forwards({2, 0});
  trainer.forward(1);
  CHECK(trainer.reshard() == "evict 0, evict 2");
  CHECK(trainer.schedule.counters().evictions == 2);
  CHECK(trainer.reshard() == "");
  CHECK(trainer.end_forward(1) == "release 1");
  CHECK(trainer.forward(0) == "regather 0, use 0");
}

TEST_CASE("a reshard is refused where every bucket keeps its parameters") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(2), 2));
  CHECK(trainer.reshard() ==
        "refused: under this strategy every bucket keeps its parameters; there is nothing to give "
        "back");
  CHECK(trainer.schedule.held(0));
}

}  // namespace
}  // namespace troupe::testing
