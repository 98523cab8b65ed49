// Rules 7 and 8: ends of uses, of micro-batches, of steps; and updates.
#include "schedule_fixture.hpp"

#include <doctest/doctest.h>

#include <utility>

namespace troupe::testing {
namespace {

TEST_CASE("rule 7: an end releases, then reduces, then prefetches") {
  Trainer trainer = trainer_in_micro_batch(plan_of({{0}, {1, 2}}, 2, 1, 2));
  trainer.forwards({0, 1});
  trainer.backward(1);
  trainer.schedule.set_next_ticket(100);
  CHECK(trainer.end_backward(1) == "release 1, release 2, reduce 1, reduce 2, evict 1, gather 0");
  CHECK(trainer.schedule.decisions()[2].ticket == 100);
  CHECK(trainer.schedule.decisions()[3].ticket == 101);
  CHECK(trainer.schedule.decisions()[5].ticket == 102);
  CHECK(trainer.schedule.next_ticket() == 103);
}

TEST_CASE("rule 7: a bucket used twice in forward reduces after its second backward") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 3, 0));
  trainer.forwards({0, 1, 1, 2});
  trainer.backwards({2});
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1");
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
}

TEST_CASE("rule 7: recomputations do not count") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.forwards({0, 1});
  trainer.backward(1);
  trainer.forwards({1, 1});
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
  trainer.forwards({0});
  trainer.backward(0);
  CHECK(trainer.end_backward(0) == "release 0, reduce 0");
}

TEST_CASE("rule 7: uses of a tied bucket are summed over its units") {
  Trainer trainer = trainer_in_micro_batch(plan_of({{0}, {1}, {0, 2}}, 3, 0, 3));
  trainer.forwards({0, 1, 2});
  trainer.backward(2);
  CHECK(trainer.end_backward(2) == "release 0, release 2, reduce 2");
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
  trainer.backward(0);
  CHECK(trainer.end_backward(0) == "release 0, reduce 0");
}

TEST_CASE("rule 7: while another backward of the bucket is open it does not reduce") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.forwards({1});
  trainer.backward(1);
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1");
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
}

TEST_CASE("rule 7: a backward without a forward reduces at its end") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
}

TEST_CASE("rule 7: a backward more than there were forwards reduces again") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.forwards({1});
  trainer.backwards({1});
  CHECK(trainer.backward(1) == "use 1, contribute 1");
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
}

TEST_CASE("rule 7: what is left reduces at the end of the micro-batch, in plan order") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 3, 0, 3));
  trainer.forwards({0, 1, 2, 0, 1, 2});
  trainer.backwards({2, 0});
  CHECK(trainer.schedule.gradient_slots_in_use(0) == 2);
  CHECK(trainer.end_micro_batch() == "reduce 0, reduce 2");
  CHECK(trainer.schedule.gradient_slots_in_use(0) == 0);
}

TEST_CASE("rule 7: no count survives its micro-batch") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.forwards({0, 1, 1});
  trainer.backwards({0});
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({1});
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
}

TEST_CASE("rule 7: forwards in eval do not count") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.forwards({1});
  trainer.eval();
  trainer.forwards({1});
  trainer.end_eval();
  trainer.backward(1);
  CHECK(trainer.end_backward(1) == "release 1, reduce 1");
}

TEST_CASE("an end ends the latest open use of its unit and direction") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.forward(0);
  trainer.backward(0);
  trainer.forward(1);
  CHECK(trainer.end_forward(0) == "release 0");
  CHECK(trainer.end_backward(0) == "release 0, reduce 0");
  CHECK(trainer.schedule.open_use_count() == 1);
}

TEST_CASE("an end without a begin is counted and ignored") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 1));
  CHECK(trainer.end_forward(0) == "");
  trainer.forward(0);
  CHECK(trainer.end_backward(0) == "");
  CHECK(trainer.end_forward(1) == "");
  CHECK(trainer.schedule.counters().releases_ignored == 3);
  CHECK(trainer.schedule.open_use_count() == 1);
  CHECK(trainer.end_forward(9) == "refused: there is no unit 9 to end");
}

TEST_CASE("rule 8: a step end gives back all slots and leaves everything stale") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(4, 3, 1));
  trainer.forwards({0, 1});
  trainer.end_micro_batch();
  CHECK(trainer.step_end() == "step_end 0, step_end 1, step_end 2");
  for (BucketId bucket = 0; bucket < 4; ++bucket) {
    CHECK_FALSE(trainer.schedule.held(bucket));
    CHECK(trainer.schedule.stale(bucket));
  }
  CHECK(trainer.schedule.counters().evicted_unused == 1);
  CHECK(trainer.schedule.counters().evictions == 0);
}

TEST_CASE("rule 8: a step ends neither inside a micro-batch nor inside eval") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  CHECK(trainer.step_end() == "refused: the step cannot end inside a micro-batch");
  trainer.forward(0);
  CHECK(trainer.end_micro_batch() ==
        "refused: the micro-batch cannot end while a use is open: forward of unit 'a'");
  trainer.end_forward(0);
  trainer.end_micro_batch();
  trainer.eval();
  CHECK(trainer.step_end() == "refused: the step cannot end inside eval");
  trainer.end_eval();
  CHECK(trainer.step_end() == "step_end 0");
}

TEST_CASE("a use of stale parameters is refused, with what to call") {
  Trainer trainer(uniform_plan(2, 2, 1));
  trainer.micro_batch();
  CHECK(trainer.forward(0) ==
        "refused: forward of unit 'a': the parameters of bucket 0 'a' are not initialised, or not "
        "updated since the last step; call runtime.update() first");
  trainer.updated(0);
  CHECK(trainer.forward(0) == "use 0");
}

TEST_CASE("a use outside a micro-batch and eval is refused") {
  Trainer trainer(uniform_plan(2, 2, 1));
  trainer.update_all();
  CHECK(trainer.forward(0).starts_with(
      "refused: forward of unit 'a' outside a micro-batch and eval"));
  CHECK(trainer.forward(5) == "refused: there is no unit 5 to use");
}

TEST_CASE("micro-batches do not nest") {
  Trainer trainer(uniform_plan(2, 2, 1));
  CHECK(trainer.end_micro_batch() == "refused: the end of a micro-batch, but none has begun");
  trainer.micro_batch();
  CHECK(trainer.micro_batch() == "refused: a micro-batch cannot begin inside another micro-batch");
  trainer.eval();
  CHECK(trainer.micro_batch() == "refused: a micro-batch cannot begin inside eval");
  CHECK(trainer.end_micro_batch() == "refused: a micro-batch cannot end inside eval");
}

TEST_CASE("the begin of an update gives back all slots and keeps the order and the place in it") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(4, 3, 1));
  trainer.forwards({0, 1});
  CHECK(trainer.begin_update() == "step_end 0, step_end 1, step_end 2");
  CHECK(trainer.updated(0) == "");
  CHECK(trainer.updated(2) == "gather 2");  // the next use is the forward of 2
}

TEST_CASE("an update begins neither with an open use, nor while a gradient fills, nor in eval") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.forwards({1, 1});
  trainer.forward(0);
  CHECK(trainer.begin_update() ==
        "refused: an update cannot begin while a use is open: forward of unit 'a'");
  trainer.end_forward(0);
  trainer.backwards({1});
  CHECK(trainer.begin_update() ==
        "refused: an update cannot begin while gradients are being accumulated: bucket 1 'b', "
        "after 1 "
        "of 2 backwards; end the micro-batch first");
  trainer.end_micro_batch();
  trainer.eval();
  CHECK(trainer.begin_update() == "refused: an update cannot begin inside eval");
  trainer.end_eval();
  CHECK(trainer.begin_update() == "step_end 0, step_end 1");
}

TEST_CASE("a reduce with a sum over replicas behind it takes two tickets") {
  SchedulePlan plan = uniform_plan(2, 2, 0, 1);
  plan.replica_sum = ReplicaSum::every_reduce;
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  trainer.forwards({0, 1});
  trainer.backwards({1});
  CHECK(launched(trainer.schedule) == "reduce 1 at 3");
  CHECK(trainer.schedule.next_ticket() == 5);
  trainer.backward(0);
  CHECK(trainer.schedule.used()[0].gradient_slot == 0);
  CHECK(trainer.schedule.used()[0].previous_reduce == 4);  // the sum reads the slot last
  trainer.end_backward(0);
  CHECK(launched(trainer.schedule) == "reduce 0 at 5");
  trainer.end_micro_batch();
  CHECK(trainer.step_end() == "step_end 0, step_end 1");
}

TEST_CASE("zeros take two tickets as well") {
  SchedulePlan plan = agreed_plan(one_bucket_each(2), 2);
  plan.replica_sum = ReplicaSum::every_reduce;
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  trainer.end_micro_batch();
  CHECK(launched(trainer.schedule) == "reduce 1 at 3, reduce 0 at 5");
  CHECK(trainer.schedule.next_ticket() == 7);
}

TEST_CASE("a step end sums over replicas what was reduced in the step, in plan order, then drops") {
  SchedulePlan plan = uniform_plan(3, 3, 0);
  plan.replica_sum = ReplicaSum::at_step_end;
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  trainer.forwards({0, 1, 2});
  trainer.backwards({2, 0});
  CHECK(launched(trainer.schedule) == "reduce 0 at 5");
  trainer.end_micro_batch();
  trainer.micro_batch();
  trainer.forwards({2});
  trainer.backwards({2});  // reduced twice, summed once
  trainer.end_micro_batch();
  CHECK(trainer.step_end() == "sum_replicas 0, sum_replicas 2, step_end 0, step_end 1, step_end 2");
  CHECK(launched(trainer.schedule) == "sum_replicas 0 at 7, sum_replicas 2 at 8");
  CHECK(trainer.schedule.next_ticket() == 9);
  CHECK(trainer.step_end() == "");
}

}  // namespace
}  // namespace troupe::testing
