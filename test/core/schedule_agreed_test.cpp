// [Note: the agreed order]: gathers, frozen buckets, and the record.
#include "schedule_fixture.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {
namespace {

using Buckets = std::vector<BucketId>;

TEST_CASE("agreed order: a demand launches the gathers before it, in order") {
  Trainer trainer(agreed_plan(one_bucket_each(4), 0));
  trainer.update_all();
  trainer.micro_batch();
  CHECK(trainer.forward(2) == "gather 0, gather 1, gather 2, use 2");
  CHECK(launched(trainer.schedule) == "gather 0 at 1, gather 1 at 2, gather 2 at 3");
  CHECK(trainer.schedule.used()[0].gather == 3);
  CHECK_FALSE(trainer.schedule.used()[0].hit);
  CHECK(trainer.end_forward(2) == "release 2");
  CHECK(trainer.forward(0) == "use 0");
  CHECK(trainer.schedule.used()[0].gather == 1);
  CHECK(trainer.schedule.used()[0].hit);
}

TEST_CASE("agreed order: the order counts, not the number of the bucket") {
  SchedulePlan plan = agreed_plan({{0}, {1}, {2, 3}}, 1);
  plan.first_order.gathers = {3, 1, 0, 2};
  Trainer trainer(std::move(plan));
  CHECK(trainer.updated(0) == "");
  CHECK(trainer.updated(1) == "");
  CHECK(trainer.updated(2) == "");
  CHECK(trainer.updated(3) == "gather 3");
  trainer.micro_batch();
  CHECK(trainer.forward(1) == "gather 1, use 1, gather 0");
  CHECK(trainer.forward(2) == "use 3, gather 2, use 2");
}

TEST_CASE("agreed order: prefetches are `depth` places behind the farthest use") {
  Trainer trainer(agreed_plan(one_bucket_each(6), 2));
  for (const BucketId bucket : {0U, 1U}) {
    CHECK(trainer.updated(bucket) == "gather " + std::to_string(bucket));
  }
  for (const BucketId bucket : {2U, 3U, 4U, 5U}) {
    CHECK(trainer.updated(bucket) == "");
  }
  trainer.micro_batch();
  CHECK(trainer.forward(0) == "use 0, gather 2");
  CHECK(trainer.end_forward(0) == "release 0");
  CHECK(trainer.forward(2) == "use 2, gather 3, gather 4");
  CHECK(trainer.end_forward(2) == "release 2");
  CHECK(trainer.forward(1) == "use 1");  // not farther than the last one
  CHECK(trainer.end_forward(1) == "release 1");
  CHECK(trainer.forward(3) == "use 3, gather 5");
}

TEST_CASE("agreed order: prefetches stop at the first stale bucket, and go on at its update") {
  Trainer trainer(agreed_plan(one_bucket_each(5), 2));
  trainer.updated(0);
  trainer.updated(1);
  trainer.updated(3);
  trainer.micro_batch();
  CHECK(trainer.forward(1) == "use 1");  // 2 is stale, so 3 has to wait as well
  CHECK(trainer.updated(2) == "gather 2, gather 3");
  CHECK(trainer.updated(4) == "");  // three places behind the farthest use
  CHECK(launched(trainer.schedule) == "");
  CHECK(trainer.end_forward(1) == "release 1");
  CHECK(trainer.forward(2) == "use 2, gather 4");
}

TEST_CASE("agreed order: a use with an earlier bucket that is stale is refused") {
  Trainer trainer(agreed_plan(one_bucket_each(3), 1));
  trainer.updated(0);
  trainer.updated(2);
  trainer.micro_batch();
  CHECK(trainer.forward(2) ==
        "refused: forward of unit 'c': bucket 1 'b' is gathered before its parameters, and is not "
        "updated since the last step; finish the update first");
  CHECK(trainer.forward(1) ==
        "refused: forward of unit 'b': the parameters of bucket 1 'b' are not initialised, or not "
        "updated since the last step; call runtime.update() first");
  CHECK(trainer.forward(0) == "use 0");
  CHECK(trainer.updated(1) == "gather 1");
  CHECK(trainer.forward(2) == "gather 2, use 2");
}

TEST_CASE("agreed order: a backward while any bucket is stale is refused") {
  Trainer trainer(agreed_plan(one_bucket_each(3), 0));
  trainer.updated(0);
  trainer.updated(1);
  trainer.micro_batch();
  trainer.forwards({0});
  CHECK(trainer.backward(0) ==
        "refused: backward of unit 'a': bucket 2 'c' is gathered before the first reduce, and is "
        "not updated since the last step; finish the update first");
  trainer.updated(2);
  CHECK(trainer.backward(0) == "use 0, gather 1, gather 2, contribute 0");
}

TEST_CASE("agreed order: a backward launches the rest of the gathers before the first reduce") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(4), 0));
  trainer.forwards({0});
  CHECK(trainer.backward(0) == "use 0, gather 1, gather 2, gather 3, contribute 0");
  CHECK(launched(trainer.schedule) == "gather 1 at 2, gather 2 at 3, gather 3 at 4");
  CHECK(trainer.end_backward(0) ==
        "release 0, contribute 3, reduce 3, contribute 2, reduce 2, contribute 1, reduce 1, "
        "reduce 0");
  CHECK(launched(trainer.schedule) == "reduce 3 at 5, reduce 2 at 6, reduce 1 at 7, reduce 0 at 8");
}

TEST_CASE("agreed order: the end of a micro-batch launches the rest of the gathers") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(2), 0));
  CHECK(trainer.end_micro_batch() ==
        "gather 0, gather 1, contribute 1, reduce 1, contribute 0, reduce 0");
}

TEST_CASE("agreed order: the end of an eval launches the rest of the gathers") {
  Trainer trainer(agreed_plan(one_bucket_each(3), 0));
  trainer.update_all();
  trainer.eval();
  CHECK(trainer.forward(1) == "gather 0, gather 1, use 1");
  trainer.end_forward(1);
  CHECK(trainer.end_eval() == "gather 2");
}

TEST_CASE("agreed order: after such an end a bucket is gathered as soon as it is updated") {
  Trainer trainer(agreed_plan(one_bucket_each(3), 0));
  trainer.updated(0);
  trainer.eval();
  CHECK(trainer.end_eval() == "gather 0");
  CHECK(trainer.updated(2) == "");
  CHECK(trainer.updated(1) == "gather 1, gather 2");
}

TEST_CASE("agreed order: an update inside a micro-batch launches the rest before it drops all") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(3), 0));
  trainer.forwards({0});
  CHECK(trainer.begin_update() == "gather 1, gather 2, step_end 0, step_end 1, step_end 2");
  CHECK(trainer.updated(0) == "");
  CHECK(trainer.forward(0) == "gather 0, use 0");
}

TEST_CASE("agreed order: an update behind the first backward of a micro-batch is refused") {
  Trainer trainer(agreed_plan(one_bucket_each(2), 0));
  trainer.update_all();
  trainer.micro_batch();
  trainer.forward(0);
  trainer.end_forward(0);
  trainer.backward(0);
  trainer.end_backward(0);  // reduced: nothing is being filled
  const Result<void> refused = trainer.schedule.begin_update();
  REQUIRE_FALSE(refused);
  CHECK(refused.failure().code == ErrorCode::misuse);
  CHECK(refused.failure().text ==
        "an update cannot begin inside a micro-batch that has begun its backwards: where ranks use "
        "different units, some have reduced and others have not; end the micro-batch first");
  CHECK(trainer.schedule.decisions().empty());
  REQUIRE(trainer.schedule.end_micro_batch());
  CHECK(trainer.schedule.begin_update());
}

TEST_CASE("agreed order: outside a micro-batch an update launches nothing") {
  Trainer trainer(agreed_plan(one_bucket_each(3), 1));
  trainer.update_all();
  CHECK(trainer.begin_update() == "step_end 0");
  CHECK(trainer.updated(0) == "gather 0");  // the place that was reached is forgotten
  CHECK(trainer.updated(1) == "");
}

TEST_CASE("agreed order: a frozen bucket stays gathered until an update has changed it") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(3), 0, 0, {1}));
  trainer.forwards({0, 1, 2});
  trainer.end_micro_batch();
  CHECK(trainer.step_end() == "step_end 0, step_end 2");
  CHECK(trainer.schedule.held(1));
  CHECK(trainer.schedule.stale(1));
  CHECK(trainer.updated(0) == "");
  CHECK(trainer.updated(1, false) == "");
  CHECK(trainer.updated(2) == "");
  trainer.micro_batch();
  CHECK(trainer.forward(2) == "gather 0, gather 2, use 2");
  CHECK(trainer.forward(1) == "use 1");
  CHECK(trainer.schedule.used()[0].gather == 2);  // that of the first step
  trainer.end_forward(1);
  trainer.end_forward(2);
  trainer.end_micro_batch();
  CHECK(trainer.begin_update() == "step_end 0, step_end 2");
  CHECK(trainer.updated(0) == "");
  CHECK(trainer.updated(1, true) == "step_end 1");
  CHECK_FALSE(trainer.schedule.held(1));
  trainer.updated(2);
  trainer.micro_batch();
  CHECK(trainer.forward(2) == "gather 0, gather 1, gather 2, use 2");
}

TEST_CASE("agreed order: a trainable bucket is gathered again, also if nothing has changed") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(1), 1));
  trainer.end_micro_batch();
  CHECK(trainer.step_end() == "step_end 0");
  CHECK(trainer.updated(0, false) == "gather 0");
}

TEST_CASE("agreed order: nothing is gathered past a kept bucket whose update is not finished") {
  Trainer trainer = trainer_in_micro_batch(agreed_plan(one_bucket_each(3), 3, 0, {1}));
  trainer.end_micro_batch();
  trainer.step_end();
  CHECK(trainer.updated(2) == "");
  CHECK(trainer.updated(0) == "gather 0");
  trainer.micro_batch();
  CHECK(trainer.forward(2) ==
        "refused: forward of unit 'c': bucket 1 'b' is gathered before its parameters, and is not "
        "updated since the last step; finish the update first");
  CHECK(trainer.updated(1, true) == "step_end 1, gather 1, gather 2");
}

TEST_CASE("agreed order: the record is by first use and by completion, those around others last") {
  SchedulePlan plan = agreed_plan(one_bucket_each(4), 1);  // registered otherwise than executed
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  trainer.forward(3);  // around 1 and 0
  trainer.forwards({1, 0});
  trainer.end_forward(3);
  trainer.forwards({2});
  trainer.backwards({2});
  trainer.backward(3);
  trainer.backwards({0, 1});
  trainer.end_backward(3);
  trainer.end_micro_batch();
  trainer.step_end();
  const AgreedOrder recorded{.gathers = {3, 1, 0, 2}, .reduces = {2, 0, 1, 3}};
  CHECK(trainer.schedule.recorded() == recorded);
  CHECK(trainer.schedule.agreed_order().gathers == Buckets{0, 1, 2, 3});
  trainer.schedule.adopt(trainer.schedule.recorded());
  CHECK(told(trainer.schedule) == "");  // not those of the step end once more
  CHECK(trainer.schedule.agreed_order() == recorded);
  trainer.updated(0);
  trainer.updated(1);
  trainer.updated(2);
  CHECK(trainer.updated(3) == "gather 3");
  trainer.micro_batch();
  CHECK(trainer.forward(0) == "gather 1, gather 0, use 0, gather 2");
}

TEST_CASE("agreed order: what was not used keeps its place in the order in force") {
  SchedulePlan plan = agreed_plan(one_bucket_each(4), 0);
  plan.first_order = {.gathers = {2, 0, 3, 1}, .reduces = {1, 3, 0, 2}};
  Trainer trainer = trainer_in_micro_batch(std::move(plan));
  trainer.forwards({3});
  trainer.backwards({3});
  trainer.eval();
  trainer.forwards({1});  // eval is not recorded
  trainer.end_eval();
  trainer.end_micro_batch();
  trainer.step_end();
  CHECK(trainer.schedule.recorded() ==
        AgreedOrder{.gathers = {2, 0, 3, 1}, .reduces = {1, 3, 0, 2}});
  trainer.step_end();
  CHECK(trainer.schedule.recorded() ==
        AgreedOrder{.gathers = {2, 0, 3, 1}, .reduces = {1, 3, 0, 2}});  // none was adopted
}

}  // namespace
}  // namespace troupe::testing
