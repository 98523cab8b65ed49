#include "support/fake_clock.hpp"
#include "support/local_ranks.hpp"

#include <doctest/doctest.h>

#include <string>

namespace troupe::test {
namespace {

using std::chrono::milliseconds;

CollectiveCall barrier(Ticket ticket) {
  return {.op = Collective::barrier, .ticket = ticket, .bucket = 3, .label = "block.1"};
}

void launch(LocalRanks& ranks, int rank, Ticket ticket, int channel = 0) {
  REQUIRE(
      ranks.communicator(rank, channel).launch(barrier(ticket), ranks.stream(rank, channel)).ok());
}

// ---- leaving ------------------------------------------------------------------------------------

const std::string left_text =
    "barrier of bucket 3 'block.1' (ticket 1) waits for rank 2, which has left: rank 2 finished "
    "after step 5";

TEST_CASE("a collective that waits for a rank fails when the rank leaves") {
  LocalRanks ranks(3, StreamWorkers::manual);
  launch(ranks, 0, 1);
  CHECK_FALSE(step_all(ranks.streams()));
  ranks.world.leave(2, "rank 2 finished after step 5");
  step_all(ranks.streams());
  REQUIRE(ranks.stream(0).failure());
  CHECK(ranks.stream(0).failure()->text == left_text);
  CHECK(ranks.stream(0).failure()->code == ErrorCode::peer_failed);
  CHECK(ranks.stream(0).failure()->rank == 2);
  CHECK(ranks.stream(0).failure()->ticket == 1);
}

TEST_CASE("a collective begun after a rank has left fails at once") {
  LocalRanks ranks(3, StreamWorkers::manual);
  ranks.world.leave(2, "rank 2 finished after step 5");
  CHECK_FALSE(ranks.world.first_failure().get());  // nobody waits
  launch(ranks, 1, 1);
  step_all(ranks.streams());
  CHECK(ranks.stream(1).failure()->text == left_text);
  CHECK(ranks.world.first_failure().get()->text == left_text);
}

TEST_CASE("a rank that leaves harms no collective that it has come to") {
  LocalRanks ranks(3, StreamWorkers::manual);
  for (int rank = 0; rank < 3; ++rank) {
    launch(ranks, rank, 1);
  }
  ranks.stream(2).step();  // it has come, then its trainer returns
  ranks.world.leave(2, "rank 2 finished after step 5");
  CHECK(step_all(ranks.streams()));
  for (const auto& failure : ranks.failures()) {
    CHECK_FALSE(failure);
  }
  CHECK_FALSE(ranks.world.first_failure().get());
}

TEST_CASE("groups without the rank that has left go on") {
  LocalRanks ranks(3, StreamWorkers::manual);
  auto left = ranks.world.communicator(0, {0, 1}, 0);
  ranks.world.leave(2, "gone");
  auto right = ranks.world.communicator(1, {0, 1}, 0);
  REQUIRE(left->launch(barrier(1), ranks.stream(0)).ok());
  REQUIRE(right->launch(barrier(1), ranks.stream(1)).ok());
  CHECK(step_all(ranks.streams()));
  CHECK_FALSE(ranks.world.first_failure().get());
  auto late = ranks.world.communicator(0, {0, 2}, 0);  // made after the leave
  REQUIRE(late->launch(barrier(1), ranks.stream(0)).ok());
  step_all(ranks.streams());
  CHECK(ranks.stream(0).failure()->rank == 2);
}

TEST_CASE("a leave wakes ranks that sleep") {
  LocalRanks ranks(4, StreamWorkers::threads);
  for (const int rank : {0, 1, 3}) {
    launch(ranks, rank, 1);
  }
  std::this_thread::sleep_for(milliseconds(5));
  ranks.world.leave(2, "rank 2 finished after step 5");
  for (const int rank : {0, 1, 3}) {
    CHECK(settle(ranks.stream(rank)).failure->text == left_text);
  }
}

// ---- timeouts -----------------------------------------------------------------------------------

TEST_CASE("a rank that waits too long says for whom, in what, and what they did last") {
  FakeClock clock;
  LocalRanks ranks(4, StreamWorkers::manual, milliseconds(5000), clock);
  for (int rank = 0; rank < 4; ++rank) {
    launch(ranks, rank, 1);
  }
  CHECK(step_all(ranks.streams()));
  for (const int rank : {0, 2}) {
    launch(ranks, rank, 2);
  }
  step_all(ranks.streams());
  clock.advance(milliseconds(4999));
  step_all(ranks.streams());
  CHECK_FALSE(ranks.world.first_failure().get());
  clock.advance(milliseconds(1));
  ranks.stream(2).step();
  const auto failure = ranks.world.first_failure().get();
  REQUIRE(failure.has_value());
  CHECK(failure->text ==
        "rank 2 waited 5000 ms for ranks 1 and 3: expected barrier of bucket 3 'block.1' "
        "(ticket 2), actual: rank 1 has launched nothing after barrier of bucket 3 (ticket 1); "
        "rank 3 has launched nothing after barrier of bucket 3 (ticket 1)");
  CHECK(failure->code == ErrorCode::timeout);
  CHECK(failure->rank == 1);
  CHECK(failure->ticket == 2);
  CHECK(failure->bucket == 3);
  step_all(ranks.streams());
  CHECK(ranks.stream(0).failure() == failure);
  CHECK(ranks.stream(2).failure() == failure);
}

TEST_CASE("the time runs from a rank's own arrival") {
  FakeClock clock;
  LocalRanks ranks(3, StreamWorkers::manual, milliseconds(100), clock);
  launch(ranks, 0, 1);
  clock.advance(milliseconds(1000));  // not begun yet
  ranks.stream(0).step();
  clock.advance(milliseconds(90));
  launch(ranks, 1, 1);
  ranks.stream(1).step();
  CHECK_FALSE(ranks.stream(0).step());
  clock.advance(milliseconds(10));
  ranks.stream(1).step();
  CHECK_FALSE(ranks.world.first_failure().get());
  ranks.stream(0).step();
  const std::string text = ranks.world.first_failure().get()->text;
  CHECK(text.find("rank 0 waited 100 ms for rank 2") == 0);
  CHECK(text.find("rank 2 has launched nothing") != std::string::npos);
}

TEST_CASE("a rank that launched but is held up on its stream is told from one that did not") {
  FakeClock clock;
  LocalRanks ranks(2, StreamWorkers::manual, milliseconds(100), clock);
  ranks.stream(1).enqueue([]() -> Result<Progress> { return Progress::blocked; });
  launch(ranks, 0, 1);
  launch(ranks, 1, 1);
  step_all(ranks.streams());
  clock.advance(milliseconds(100));
  step_all(ranks.streams());
  CHECK(ranks.stream(0).failure()->text.find(
            "rank 1 has launched a collective that its stream has not come to") !=
        std::string::npos);
}

TEST_CASE("a peer that comes but does not finish is a timeout too") {
  FakeClock clock;
  LocalRanks ranks(2, StreamWorkers::manual, milliseconds(100), clock, 1, each_its_part);
  launch(ranks, 0, 1);
  launch(ranks, 1, 1);
  ranks.stream(0).step();
  ranks.stream(1).step();  // arrived and left; rank 0 makes no further step
  clock.advance(milliseconds(100));
  ranks.stream(1).step();
  CHECK(ranks.world.first_failure().get()->text.find("rank 0 takes part but does not finish") !=
        std::string::npos);
  step_all(ranks.streams());
  CHECK(ranks.stream(0).failure() == ranks.stream(1).failure());
}

TEST_CASE("a timeout comes by itself where streams have threads") {
  LocalRanks ranks(3, StreamWorkers::threads, milliseconds(30));
  launch(ranks, 0, 1);
  launch(ranks, 1, 1);
  const auto first = settle(ranks.stream(0)).failure;
  REQUIRE(first.has_value());
  CHECK(first->code == ErrorCode::timeout);
  CHECK(settle(ranks.stream(1)).failure == first);
}

}  // namespace
}  // namespace troupe::test
