// Rule 10: eval has its own order and cursor.
#include "schedule_fixture.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace troupe::testing {
namespace {

TEST_CASE("rule 10: eval records and predicts an order of its own") {
  Trainer trainer(uniform_plan(3, 2, 1));
  trainer.update_all();
  trainer.eval();
  CHECK(trainer.forward(0) == "use 0, gather 1");
  trainer.end_forward(0);
  trainer.forwards({2});
  trainer.end_eval();
  const std::vector<std::vector<PredictedUse>> recorded{{{0, Pass::forward}, {2, Pass::forward}}};
  CHECK(trainer.schedule.predicted(true) == recorded);
  CHECK(trainer.schedule.predicted(false)[0].size() == 6);

  trainer.eval();
  trainer.end_eval();
  CHECK(trainer.schedule.predicted(true) == recorded);  // nothing recorded, nothing replaced
}

TEST_CASE("rule 10: in eval the walk follows the order of eval") {
  Trainer trainer(uniform_plan(4, 2, 1));
  trainer.update_all();
  trainer.eval();
  trainer.forwards({3, 1});
  trainer.end_eval();
  trainer.begin_update();
  trainer.updated(1);
  trainer.updated(3);
  trainer.eval();
  CHECK(trainer.forward(3) == "gather 3, use 3, gather 1");
}

TEST_CASE("rule 10: beyond eval the next use is that of the interrupted training") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(4, 3, 0));
  trainer.forwards({2, 0, 1});  // the cursor stands behind the forward of 2
  trainer.eval();
  // Backward comes to 3, 2, 1, 0: beyond eval, 0 is used last.
  CHECK(trainer.forward(3) == "evict 0, gather 3, use 3");
}

TEST_CASE("rule 10: between steps nothing is interrupted, so the oldest release goes") {
  Trainer trainer(uniform_plan(4, 3, 0));
  trainer.update_all();
  trainer.eval();
  trainer.forwards({1, 0, 2});
  CHECK(trainer.forward(3) == "evict 1, gather 3, use 3");
}

TEST_CASE("eval inside a micro-batch keeps the open uses of training pinned") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 2, 0));
  trainer.forward(0);
  CHECK(trainer.eval() == "");
  trainer.forwards({1});
  CHECK(trainer.forward(2) == "evict 1, gather 2, use 2");
  CHECK(trainer.forward(1).starts_with("refused: forward of unit 'b' needs 1 more slot"));
  CHECK(trainer.end_eval() == "refused: eval cannot end while a use is open: forward of unit 'c'");
  trainer.end_forward(2);
  CHECK(trainer.end_eval() == "");
  CHECK(trainer.end_forward(0) == "release 0");
}

TEST_CASE("an end inside eval does not end a use of training") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.forward(0);
  trainer.eval();
  CHECK(trainer.end_forward(0) == "");
  CHECK(trainer.schedule.counters().releases_ignored == 1);
  trainer.end_eval();
  CHECK(trainer.end_forward(0) == "release 0");
}

TEST_CASE("the end of eval evicts what it gathered for nothing, and only that") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(5, 4, 1));
  CHECK(trainer.forward(0) == "use 0, gather 1");
  trainer.end_forward(0);
  trainer.eval();
  CHECK(trainer.forward(1) == "use 1, gather 2");
  trainer.end_forward(1);
  CHECK(trainer.end_eval() == "evict 2");
  CHECK(trainer.schedule.held(0));
  CHECK(trainer.schedule.held(1));
  CHECK(trainer.forward(1) == "use 1, gather 2");
}

TEST_CASE("a bucket that training gathered ahead survives an eval that does not use it") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(3, 3, 1));
  CHECK(trainer.forward(0) == "use 0, gather 1");
  trainer.eval();
  trainer.forwards({2});
  CHECK(trainer.end_eval() == "");
  CHECK(trainer.schedule.held(1));
}

TEST_CASE("backward and another eval are refused in eval") {
  Trainer trainer(uniform_plan(2, 2, 1));
  trainer.update_all();
  CHECK(trainer.end_eval() == "refused: the end of eval, but none has begun");
  trainer.eval();
  CHECK(trainer.backward(0) ==
        "refused: backward of unit 'a' inside eval; only forwards are allowed there");
  CHECK(trainer.eval() == "refused: eval cannot begin inside eval");
}

TEST_CASE("a forward in eval is a forward also after a backward of the micro-batch around it") {
  Trainer trainer = trainer_in_micro_batch(uniform_plan(2, 2, 0));
  trainer.backwards({1});
  trainer.eval();
  trainer.forwards({0});
  trainer.end_eval();
  CHECK(trainer.schedule.predicted(true)[0][0].pass == Pass::forward);
}

}  // namespace
}  // namespace troupe::testing
