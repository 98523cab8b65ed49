// Rules 6 and 9: what is gathered ahead, and what is not.
#include "schedule_fixture.hpp"

#include <doctest/doctest.h>

namespace troupe::testing {
namespace {

TEST_CASE("rule 6: no more than prefetch_depth buckets are held but unused") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(6, 6, 2));
  CHECK(trainer.forward(0) == "use 0, gather 2");  // 0 and 1 were gathered by the update
  CHECK(trainer.end_forward(0) == "release 0");
  CHECK(trainer.forward(1) == "use 1, gather 3");
  CHECK(trainer.schedule.slots_in_use(0) == 4);
}

TEST_CASE("rule 6: with depth 0 nothing is gathered ahead") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 3, 0));
  CHECK(trainer.schedule.slots_in_use(0) == 0);
  CHECK(trainer.forward(0) == "gather 0, use 0");
  CHECK(trainer.end_forward(0) == "release 0");
}

TEST_CASE("rule 6: a prefetch does no harm: it evicts only what is used later") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 2, 2));
  CHECK(trainer.forward(0) == "use 0");  // 2 would need the slot of 1, which comes before it
  CHECK(trainer.end_forward(0) == "release 0, evict 0, gather 2");
}

TEST_CASE("rule 6: the walk stops at a bucket that does not fit, also if a later one would") {
  SchedulePlan plan = uniform_plan(3, 1, 2);
  plan.slot_class = {0, 0, 1};
  plan.slot_classes = {{0, 1, "outsized_slots"}, {1, 2, "slots"}};
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  CHECK(trainer.forward(0) == "use 0");
  CHECK(trainer.end_forward(0) == "release 0, evict 0, gather 1, gather 2");
}

TEST_CASE("rule 6: the walk skips what is held") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(5, 5, 1));
  trainer.forwards({0, 1, 2});
  CHECK(trainer.schedule.held(3));
  CHECK(trainer.forward(0) == "use 0");  // not predicted; 3 is held and unused
  CHECK(trainer.forward(3) == "use 3, gather 4");
  CHECK(trainer.forward(4) == "use 4");  // all the way back is held
}

TEST_CASE("rule 6: after an eviction the walk comes back to the bucket that was dropped") {
  // Five slots: forward fills them with 0 to 4. Everything up to the end of the order is held.
  Trainer trainer = trainer_in_micro_batch(uniform_plan(6, 5, 1));
  trainer.forwards({0, 1, 2, 3, 4});
  CHECK_FALSE(trainer.schedule.held(0));  // evicted for 5
  CHECK(trainer.forward(5) == "use 5");
  trainer.end_forward(5);
  // 0 is wanted last; it comes back as soon as something that is not needed any more can go.
  CHECK(trainer.backward(5) == "use 5, contribute 5");
  CHECK(trainer.end_backward(5) == "release 5, reduce 5, evict 5, gather 0");
}

TEST_CASE("rule 6: when the cursor goes back, the walk goes back too") {
  // The second micro-batch starts over in an order of one segment.
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 2, 1));
  trainer.forwards({0, 1, 2});
  trainer.backwards({2, 1, 0});
  trainer.end_micro_batch();
  trainer.micro_batch();
  CHECK(trainer.schedule.held(0));
  CHECK(trainer.schedule.held(1));
  CHECK(trainer.forward(0) == "use 0");
  CHECK(trainer.end_forward(0) == "release 0, evict 0, gather 2");
}

TEST_CASE("rule 9: the start of the next step is gathered while later buckets are still updated") {
  Trainer trainer(uniform_plan(4, 3, 2));
  CHECK(trainer.updated(1) == "");  // 0 comes first, and is stale
  CHECK(trainer.updated(0) == "gather 0, gather 1");
  CHECK(trainer.updated(2) == "");
  CHECK(trainer.updated(3) == "");
  trainer.micro_batch();
  CHECK(trainer.forward(0) == "use 0, gather 2");
}

TEST_CASE("rule 9: after a step the recorded order says what is gathered first") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 2, 1));
  trainer.forwards({2, 1, 0});
  trainer.end_micro_batch();
  trainer.step_end();
  CHECK(trainer.updated(0) == "");
  CHECK(trainer.updated(1) == "");
  CHECK(trainer.updated(2) == "gather 2");
}

TEST_CASE("rule 9: updated twice is updated") {
  Trainer trainer(uniform_plan(2, 2, 1));
  CHECK(trainer.updated(0) == "gather 0");
  CHECK(trainer.updated(0) == "");
  CHECK(trainer.updated(7) == "refused: there is no bucket 7 to update");
}

}  // namespace
}  // namespace troupe::testing
