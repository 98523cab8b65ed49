// Rules 1 and 2: the predicted order, and the place in it.
#include "schedule_fixture.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace troupe::testing {
namespace {

using Segments = std::vector<std::vector<PredictedUse>>;

PredictedUse f(UnitId unit) {
  return {unit, Pass::forward};
}
PredictedUse b(UnitId unit) {
  return {unit, Pass::backward};
}
PredictedUse r(UnitId unit) {
  return {unit, Pass::recompute};
}

TEST_CASE("rule 1: before anything is recorded, units run in registration order and back") {
  const Schedule schedule(uniform_plan(3, 3, 2));
  CHECK(schedule.predicted(false) == Segments{{f(0), f(1), f(2), b(2), b(1), b(0)}});
  CHECK(schedule.predicted(true) == Segments{{f(0), f(1), f(2)}});
}

TEST_CASE("rule 1: at step end the recorded uses replace the order, one segment per micro-batch") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 3, 2));
  trainer.forwards({2, 0});
  trainer.backwards({0, 2});
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({1});
  trainer.end_micro_batch();
  CHECK(trainer.schedule.predicted(false).size() == 1);
  trainer.step_end();
  CHECK(trainer.schedule.predicted(false) == Segments{{f(2), f(0), b(0), b(2)}, {f(1)}});
}

TEST_CASE("rule 1: a forward after the first backward of its micro-batch is a recomputation") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 1));
  trainer.forwards({0, 1});
  trainer.backward(1);
  trainer.forwards({1});
  trainer.end_backward(1);
  trainer.forwards({0});
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({0});
  trainer.end_micro_batch();
  trainer.step_end();
  CHECK(trainer.schedule.predicted(false) == Segments{{f(0), f(1), b(1), r(1), r(0)}, {f(0)}});
}

TEST_CASE("rule 1: a step without a use keeps the order, an empty micro-batch leaves no segment") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 1));
  const Segments before = trainer.schedule.predicted(false);
  trainer.end_micro_batch();
  trainer.step_end();
  CHECK(trainer.schedule.predicted(false) == before);

  trainer.update_all();
  trainer.micro_batch();
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({1});
  trainer.end_micro_batch();
  trainer.step_end();
  CHECK(trainer.schedule.predicted(false) == Segments{{f(1)}});
}

TEST_CASE("rule 1: a phase that is longer than the record is recorded up to its limit") {
  Trainer trainer(plan_of({{}, {0}}, 1, 0, 1));
  trainer.update_all();
  trainer.eval();
  for (std::size_t i = 0; i < UseOrder::recorded_uses_max; ++i) {
    REQUIRE(trainer.schedule.begin(0, false).ok());
    REQUIRE(trainer.schedule.end(0, false).ok());
  }
  trainer.forwards({1});
  trainer.end_eval();
  const Segments recorded = trainer.schedule.predicted(true);
  CHECK(recorded[0].size() == UseOrder::recorded_uses_max);
  CHECK(recorded[0].back() == f(0));
}

TEST_CASE("rule 2: the cursor stands behind the use that began, so what follows is gathered") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(5, 3, 1));
  CHECK(trainer.forward(2) == "gather 2, use 2");  // 0 is held and unused since updated(0)
  CHECK(trainer.forward(0) == "use 0, gather 3");  // behind the forward of 2
}

TEST_CASE("rule 2: a use that is not predicted any more leaves the cursor where it is") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(4, 3, 1));
  CHECK(trainer.forward(0) == "use 0, gather 1");
  trainer.end_forward(0);
  CHECK(trainer.forward(2) == "gather 2, use 2");
  trainer.end_forward(2);
  CHECK(trainer.forward(1) == "use 1, evict 0, gather 3");
}

TEST_CASE("rule 2: of equal uses the first at or after the cursor counts") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(4, 2, 1));
  trainer.forwards({0, 1, 0, 2, 0, 3});
  trainer.end_micro_batch();
  trainer.step_end();
  trainer.update_all();
  trainer.micro_batch();
  CHECK(trainer.forward(0) == "use 0, gather 1");  // not 2 or 3, which follow later uses of 0
  trainer.end_forward(0);
  trainer.forward(1);
  CHECK(trainer.end_forward(1) == "release 1, evict 1, gather 2");
  trainer.forwards({0});
  trainer.forward(2);
  CHECK(trainer.end_forward(2) == "release 2, evict 2, gather 3");
}

TEST_CASE("rule 2: micro-batch m starts at segment m, and at the last one if there are fewer") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(4, 2, 1));
  trainer.forwards({0, 1});
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({0, 2});
  trainer.end_micro_batch();
  trainer.step_end();
  trainer.update_all();

  trainer.micro_batch();
  CHECK(trainer.forward(0) == "use 0, gather 1");
  trainer.end_forward(0);
  trainer.end_micro_batch();
  for (int micro_batch = 1; micro_batch < 4; ++micro_batch) {
    CAPTURE(micro_batch);
    trainer.micro_batch();
    trainer.forward(3);  // is not predicted, and takes the slot of what is used last
    CHECK(trainer.end_forward(3) == "release 3, evict 3, gather 2");
    trainer.forwards({0, 2});
    trainer.end_micro_batch();
  }
}

TEST_CASE("rule 2: an empty micro-batch does not shift the segments of those after it") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 2, 1));
  const auto step = [&] {
    trainer.forwards({0, 1});
    trainer.end_micro_batch();
    trainer.micro_batch();
    trainer.end_micro_batch();
    trainer.micro_batch();
  };
  step();
  trainer.forwards({2, 0});
  trainer.end_micro_batch();
  trainer.step_end();
  CHECK(trainer.schedule.predicted(false).size() == 2);
  trainer.update_all();
  trainer.micro_batch();
  step();
  CHECK(trainer.forward(2) == "use 2, evict 1, gather 0");
}

}  // namespace
}  // namespace troupe::testing
