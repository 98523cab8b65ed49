#include "troupe/comm/process/world_history.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace troupe::test {
namespace {

Failure failure_of(int rank) {
  return {.code = ErrorCode::peer_failed, .text = "rank " + std::to_string(rank), .rank = rank};
}

void apply(WorldHistory& history, WorldEvent event) {
  history.apply(encode(std::move(event)));
}

void all_join(WorldHistory& history, int size) {
  for (int rank = 0; rank < size; ++rank) {
    apply(history, JoinedEvent{rank, size, "pid " + std::to_string(rank)});
  }
}

Suspicion suspicion_of(int rank) {
  Suspicion suspicion;
  suspicion.rank = rank;
  return suspicion;
}

TEST_CASE("all ranks have to come, once, with the same world size") {
  WorldHistory history(3);
  apply(history, JoinedEvent{2, 3, "pid 2"});
  apply(history, JoinedEvent{0, 3, "pid 0"});
  CHECK_FALSE(history.all_joined());
  CHECK(history.not_joined() == std::vector<int>{1});
  CHECK(history.living() == std::vector<int>{0, 2});
  SUBCASE("then the world is there") {
    apply(history, JoinedEvent{1, 3, "pid 1"});
    CHECK(history.all_joined());
    apply(history, FailedEvent{0, failure_of(0)});  // rank 0 gave up waiting too late
    CHECK_FALSE(history.failure(0));
  }
  SUBCASE("a rank that comes twice") {
    apply(history, JoinedEvent{2, 3, "pid 9"});
    CHECK(history.failure(0)->text == "two processes are rank 2: pid 2 and pid 9");
  }
  SUBCASE("another size") {
    apply(history, JoinedEvent{1, 4, "pid 1"});
    CHECK(history.failure(0)->text ==
          "ranks were told different world sizes: 3, 4 on rank 1 (pid 1)");
    CHECK(history.failure(0)->rank == 1);
  }
  SUBCASE("one that dies meanwhile") {
    apply(history, DiedEvent{2, "rank 2 is gone"});
    CHECK(history.failure(0)->text == "rank 2 is gone");
  }
  SUBCASE("one that gives up waiting") {
    apply(history, FailedEvent{0, failure_of(0)});
    apply(history, JoinedEvent{1, 3, "pid 1"});
    CHECK(history.failure(0) == failure_of(0));
  }
}

TEST_CASE("who comes to a world that is complete is refused, and harms nobody") {
  WorldHistory history(3);
  for (int rank = 0; rank < 3; ++rank) {
    apply(history,
          JoinedEvent{rank, 3, "pid " + std::to_string(rank), 100U + static_cast<unsigned>(rank)});
  }
  CHECK(history.is_member(1, 101));
  CHECK_FALSE(history.refusal(101));
  apply(history, JoinedEvent{1, 3, "pid 9", 9});
  apply(history, JoinedEvent{4, 5, "pid 8", 8});
  CHECK(history.refusal(9)->text == "two processes are rank 1: pid 1 and pid 9");
  CHECK(history.refusal(8)->text ==
        "ranks were told different world sizes: 3, 5 on rank 4 (pid 8)");
  apply(history, DiedEvent{1, "pid 9 has died", 9});
  CHECK(history.is_member(1, 101));
  CHECK_FALSE(history.is_member(1, 9));
  CHECK_FALSE(history.refusal(101));
  CHECK_FALSE(history.failure(0));
  CHECK_FALSE(history.undecided(1));
  CHECK(history.died().empty());
  CHECK(history.living() == std::vector<int>{0, 1, 2});
  apply(history, DiedEvent{1, "pid 1 has died", 101});
  CHECK(history.died().at(1) == "pid 1 has died");
}

TEST_CASE("the first failure of each epoch counts") {
  WorldHistory history(2);
  all_join(history, 2);
  apply(history, FailedEvent{1, failure_of(1)});
  apply(history, FailedEvent{1, failure_of(0)});
  CHECK(history.failure(1) == failure_of(1));
  CHECK_FALSE(history.failure(2));
  apply(history, FailedEvent{2, failure_of(0)});
  CHECK(history.failure(2) == failure_of(0));
  CHECK(history.failure(1) == failure_of(1));
  apply(history, EndedEvent{{.text = "for good"}});
  apply(history, EndedEvent{{.text = "again"}});
  for (const std::uint64_t epoch : {1U, 2U, 3U}) {
    CHECK(history.failure(epoch)->text == "for good");
  }
}

TEST_CASE("suspicions and deaths are to be decided, by the first to suspect if it lives") {
  WorldHistory history(4);
  all_join(history, 4);
  CHECK_FALSE(history.undecided(1));
  SUBCASE("suspicions") {
    apply(history, SuspectedEvent{1, suspicion_of(2)});
    apply(history, SuspectedEvent{1, suspicion_of(1)});
    apply(history, SuspectedEvent{1, suspicion_of(2)});  // only its first
    CHECK(history.undecided(1));
    CHECK(history.suspicions(1).size() == 2);
    CHECK(history.decider(1) == 2);
    apply(history, DiedEvent{2, "died"});
    apply(history, DiedEvent{0, "died"});
    CHECK(history.decider(1) == 1);
    CHECK(history.living() == std::vector<int>{1, 3});
    apply(history, FailedEvent{1, failure_of(2)});
    CHECK_FALSE(history.undecided(1));
    CHECK(history.undecided(2));  // who is gone stays dead
  }
  SUBCASE("a death") {
    apply(history, DiedEvent{0, "died"});
    CHECK(history.undecided(1));
    CHECK(history.decider(1) == 1);
  }
  SUBCASE("a suspicion too late, or of an epoch before") {
    apply(history, FailedEvent{1, failure_of(2)});
    apply(history, SuspectedEvent{1, suspicion_of(1)});
    CHECK(history.suspicions(1).empty());
    apply(history, SuspectedEvent{2, suspicion_of(1)});
    apply(history, SuspectedEvent{1, suspicion_of(0)});
    CHECK(history.suspicions(2).size() == 1);
  }
}

TEST_CASE("who has departed may go") {
  WorldHistory history(2);
  all_join(history, 2);
  apply(history, DepartedEvent{1, "after step 5", {}});
  apply(history, DiedEvent{1, "died"});
  CHECK_FALSE(history.undecided(1));
  CHECK(history.died().empty());
  CHECK_FALSE(history.all_departed());
  apply(history, DepartedEvent{0, "after step 5", {}});
  CHECK(history.all_departed());
}

TEST_CASE("meetings take place in the log, and the dead come to none") {
  WorldHistory history(2);
  all_join(history, 2);
  apply(history, ArrivedEvent{0, 1, "a"});
  CHECK_FALSE(history.meetings().outcome(1));
  apply(history, ArrivedEvent{1, 1, "b"});
  apply(history, ClosedEvent{1, failure_of(0)});  // too late
  CHECK(history.meetings().outcome(1)->value() == Rendezvous::Words{"a", "b"});
  apply(history, ArrivedEvent{0, 2, "c"});
  apply(history, DiedEvent{1, "rank 1 is gone"});
  CHECK(history.meetings().over(2));
  CHECK(history.meetings().absent(2).left.at(1) == "rank 1 is gone");
  CHECK_FALSE(history.meetings().outcome(2));
  apply(history, ClosedEvent{2, failure_of(1)});
  apply(history, ClosedEvent{2, failure_of(0)});
  CHECK(history.meetings().outcome(2)->failure() == failure_of(1));
}

TEST_CASE("an entry that cannot be read ends the world") {
  const std::vector<std::string> bad{"", "damaged", encode(WorldEvent{DiedEvent{7, ""}}),
                                     encode(WorldEvent{ArrivedEvent{-1, 1, ""}}),
                                     encode(WorldEvent{SuspectedEvent{1, suspicion_of(2)}})};
  for (const std::string& entry : bad) {
    WorldHistory history(2);
    all_join(history, 2);
    history.apply(entry);
    REQUIRE(history.failure(1));
    CHECK(history.failure(1)->code == ErrorCode::internal);
    CHECK(history.failure(1)->text.find("entry 2 of the world's log") == 0);
    CHECK(history.applied() == 3);
  }
}

}  // namespace
}  // namespace troupe::test
