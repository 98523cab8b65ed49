// [Note: the agreed order]: reduces, zeros, relief.
#include "schedule_fixture.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {
namespace {

TEST_CASE("agreed order: a complete bucket waits for those before it") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(3), 3));
  trainer.forwards({0, 1, 2});
  trainer.backward(0);
  CHECK(trainer.end_backward(0) == "release 0");
  trainer.backward(2);
  CHECK(trainer.end_backward(2) == "release 2, reduce 2");
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1, reduce 1, reduce 0");
  CHECK(launched(trainer.schedule) == "reduce 1 at 5, reduce 0 at 6");
  CHECK(trainer.end_micro_batch() == "");
}

TEST_CASE("agreed order: a bucket that this rank does not use is reduced as zeros in its turn") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(3), 3));
  trainer.forwards({0, 2});
  trainer.backward(2);
  CHECK(trainer.end_backward(2) == "release 2, reduce 2");  // nothing waits for 1 yet
  trainer.backward(0);
  CHECK(trainer.end_backward(0) == "release 0, contribute 1, reduce 1, reduce 0");
  CHECK(trainer.schedule.decisions()[1].slot == 1);
  CHECK(trainer.schedule.counters().zero_reduces == 1);
  CHECK(trainer.schedule.counters().reduces == 3);
}

TEST_CASE("agreed order: one whose backward is still to come is waited for") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(3), 3));
  trainer.forwards({0, 1, 2});
  trainer.backwards({2});
  trainer.backward(0);
  CHECK(trainer.end_backward(0) == "release 0");
  CHECK(trainer.end_micro_batch() == "contribute 1, reduce 1, reduce 0");
  CHECK(trainer.schedule.counters().zero_reduces == 1);
}

TEST_CASE("agreed order: the end of a micro-batch reduces the rest in order, unfinished ones too") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(4), 4));
  trainer.forwards({0, 1, 1, 2, 3});
  trainer.backwards({1, 0});
  CHECK(trainer.end_micro_batch() ==
        "contribute 3, reduce 3, contribute 2, reduce 2, reduce 1, reduce 0");
}

TEST_CASE("agreed order: every micro-batch reduces each bucket once") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(2), 2));
  trainer.forwards({0, 1});
  trainer.backwards({1, 0});
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({1});
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
  CHECK(launched(trainer.schedule) == "reduce 1 at 5");
  CHECK(trainer.end_micro_batch() == "contribute 0, reduce 0");
  CHECK(launched(trainer.schedule) == "reduce 0 at 6");
  trainer.micro_batch();
  CHECK(trainer.end_micro_batch() == "contribute 1, reduce 1, contribute 0, reduce 0");
}

TEST_CASE("agreed order: no count survives a micro-batch, a step or its record") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(2), 2));
  trainer.forwards({1, 1, 0});
  trainer.backwards({0, 1});  // 0 waits for a backward of 1 that never comes
  trainer.end_micro_batch();
  trainer.step_end();
  CHECK(trainer.schedule.recorded() == AgreedOrder{.gathers = {1, 0}, .reduces = {1, 0}});
  trainer.schedule.adopt({.gathers = {1, 0}, .reduces = {0, 1}});
  trainer.update_all();
  trainer.micro_batch();
  trainer.forwards({0, 1});
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1");
  trainer.backward(0);
  CHECK(trainer.end_backward(0) == "release 0, reduce 0, reduce 1");
  trainer.end_micro_batch();
  trainer.step_end();
  CHECK(trainer.schedule.recorded() == AgreedOrder{.gathers = {0, 1}, .reduces = {1, 0}});
}

TEST_CASE("agreed order: a frozen bucket is not reduced") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(3), 3, 0, {1}));
  trainer.forwards({0, 1, 2});
  trainer.backwards({2});
  CHECK(trainer.backward(1) == "use 1");
  CHECK(trainer.end_backward(1) == "release 1");
  trainer.backward(0);
  CHECK(trainer.end_backward(0) == "release 0, reduce 0");
  CHECK(trainer.end_micro_batch() == "");
}

TEST_CASE("agreed order: ranks that use a unit and ranks that do not launch alike from the start") {
  const auto launches_of = [](const std::vector<UnitId>& units) {
    Trainer trainer(agreed_plan(one_bucket_each(4), 1));
    for (int step = 0; step < 2; ++step) {
      trainer.update_all();
      trainer.micro_batch();
      trainer.forwards(units);
      trainer.backwards({units.rbegin(), units.rend()});
      trainer.end_micro_batch();
      trainer.step_end();
      trainer.schedule.adopt({.gathers = {0, 1, 2, 3}, .reduces = {3, 2, 1, 0}});
    }
    return trainer.launches;
  };
  const std::string all = launches_of({0, 1, 2, 3});
  CHECK(all ==
        "gather 0 at 1, gather 1 at 2, gather 2 at 3, gather 3 at 4, reduce 3 at 5, reduce 2 at 6, "
        "reduce 1 at 7, reduce 0 at 8, gather 0 at 9, gather 1 at 10, gather 2 at 11, gather 3 at "
        "12, reduce 3 at 13, reduce 2 at 14, reduce 1 at 15, reduce 0 at 16");
  CHECK(launches_of({0, 1, 3}) == all);
  CHECK(launches_of({2}) == all);
  CHECK(launches_of({}) == all);
}

TEST_CASE("agreed order: a backward after the reduce of its bucket is refused") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(2), 2));
  trainer.forwards({0, 1});
  trainer.backwards({1});
  CHECK(
      trainer.backward(1) ==
      "refused: backward of unit 'b': the gradient of bucket 1 'b' was reduced already in this "
      "micro-batch, complete or as zeros of a unit not used; under this strategy that happens once "
      "in each");
  trainer.backwards({0});
  trainer.end_micro_batch();
  trainer.micro_batch();
  CHECK(trainer.backward(1) == "use 1, contribute 1");
}

TEST_CASE("agreed order: a backward more is added to a bucket that still waits") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(2), 2));
  trainer.forwards({0, 1});
  trainer.backwards({0});
  CHECK(trainer.backward(0) == "use 0");
  CHECK(trainer.schedule.used()[0].gradient_slot == 0);
  CHECK_FALSE(trainer.schedule.used()[0].first_contribution);
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");  // 0 does not wait any more
  CHECK(trainer.end_backward(0) == "release 0, reduce 0");
}

TEST_CASE(
    "agreed order: a backward without a free gradient slot lets waiting buckets out of turn") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan({{0}, {1}, {2}, {3, 4}}, 5, 2));
  trainer.forwards({0, 1, 2, 3});
  trainer.backwards({0, 1});  // both wait for 4, 3 and 2
  CHECK(trainer.schedule.gradient_slots_in_use(0) == 2);
  CHECK(trainer.backward(2) == "use 2, reduce 1, contribute 2");  // in the agreed order: 1, then 0
  CHECK(launched(trainer.schedule) == "reduce 1 at 6");
  CHECK(trainer.schedule.used()[0].previous_reduce == 6);
  CHECK(trainer.end_backward(2) == "release 2");
  CHECK(trainer.backward(3) == "use 3, use 4, reduce 2, reduce 0, contribute 3, contribute 4");
  CHECK(trainer.end_backward(3) == "release 3, release 4, reduce 4, reduce 3");
  CHECK(trainer.end_micro_batch() == "");
  trainer.micro_batch();
  trainer.forwards({3});
  trainer.backward(3);
  CHECK(trainer.end_backward(3) == "release 3, release 4, reduce 4, reduce 3");
}

TEST_CASE("agreed order: only buckets of the class that lacks a slot go out of turn") {
  SchedulePlan plan = agreed_plan(one_bucket_each(4), 4, 1);
  plan.gradient_class = {0, 0, 1, 1};
  plan.gradient_classes = {{0, 1, "gradient_slots"}, {1, 2, "outsized_gradient_slots"}};
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  trainer.forwards({0, 1, 2, 3});
  trainer.backwards({2, 0});  // both wait for 3
  CHECK(trainer.backward(1) == "use 1, reduce 0, contribute 1");
  trainer.end_backward(1);
  trainer.backward(3);
  CHECK(trainer.end_backward(3) == "release 3, reduce 3, reduce 2, reduce 1");
}

TEST_CASE("agreed order: a waiting bucket that the backward adds to does not make room") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan({{0}, {0, 1}, {2}}, 3, 1));
  trainer.forwards({0, 2});
  trainer.backwards({0});
  CHECK(trainer.backward(1) ==
        "refused: backward of unit 'b' needs 1 more gradient slot, but of `gradient_slots` = 1, 1 "
        "are held by: bucket 0 'a', after 1 of 1 backwards; `gradient_slots` = 2 would do");
  CHECK(trainer.backward(2) == "use 2, reduce 0, contribute 2");
}

TEST_CASE("agreed order: where zeros find no slot, the end of a micro-batch lets one out of turn") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(3), 3, 1));
  trainer.forwards({0});
  trainer.backward(0);
  CHECK(trainer.end_backward(0) == "release 0");  // 2 and 1 have no slot for their zeros
  CHECK(trainer.end_micro_batch() == "reduce 0, contribute 2, reduce 2, contribute 1, reduce 1");
  CHECK(trainer.schedule.gradient_slots_in_use(0) == 0);
}

TEST_CASE("agreed order: zeros take the slot that a reduce before them has given back") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(2), 2, 1));
  trainer.forwards({1, 0});
  trainer.backwards({1});
  CHECK(trainer.end_micro_batch() == "contribute 0, reduce 0");
  trainer.micro_batch();
  trainer.forwards({1, 1});
  trainer.backwards({1});
  CHECK(trainer.end_micro_batch() == "reduce 1, contribute 0, reduce 0");
}

TEST_CASE("agreed order: only the class that lacks a slot lets a bucket out of turn") {
  SchedulePlan plan = agreed_plan(one_bucket_each(4), 4, 1);
  plan.gradient_class = {1, 1, 0, 0};
  plan.gradient_classes = {{0, 1, "gradient_slots"}, {1, 1, "outsized_gradient_slots"}};
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  trainer.forwards({0, 3, 3});
  trainer.backwards({3, 0});
  CHECK(trainer.end_micro_batch() ==
        "reduce 0, reduce 3, contribute 2, reduce 2, contribute 1, reduce 1");
}

TEST_CASE("agreed order: an update does not begin while a bucket waits for its reduce") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(2), 2));
  trainer.forwards({0, 1});
  trainer.backwards({0});
  CHECK(trainer.begin_update() ==
        "refused: an update cannot begin while gradients are being accumulated: bucket 0 'a', "
        "after 1 of 1 backwards; end the micro-batch first");
}

}  // namespace
}  // namespace troupe::testing
