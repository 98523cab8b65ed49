#include "troupe/comm/process/diagnosis.hpp"

#include "troupe/comm/call_check.hpp"
#include "troupe/comm/local_group.hpp"

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

namespace troupe::test {
namespace {

using Kind = Suspicion::Kind;

const GroupName world{{0, 1, 2}, 0};

CollectiveCall gather(Ticket ticket, std::int64_t numel = 64) {
  return {.op = Collective::all_gather,
          .ticket = ticket,
          .runtime = 1,
          .bucket = 3,
          .label = "block.1",
          .numel = numel};
}

Suspicion suspect(Kind kind, int rank, const CollectiveCall& call, std::uint64_t turn) {
  return {.kind = kind, .rank = rank, .group = world, .turn = turn, .call = logged(call)};
}

/// Of a rank that has launched tickets 1, 2, … on the world's group, and begun all but the last
/// `pending` ones; all but the last one begun have ended.
RankPosition at(int rank, std::vector<CollectiveCall> calls, std::size_t pending = 0) {
  GroupPosition group{world, calls.size(), {}};
  for (std::size_t turn = 0; turn < calls.size(); ++turn) {
    const std::size_t behind = calls.size() - turn;
    group.launches.push_back({turn, logged(calls[turn]),
                              behind <= pending       ? LaunchStage::launched
                              : behind == pending + 1 ? LaunchStage::begun
                                                      : LaunchStage::ended});
  }
  return {rank, {group}};
}

Failure decide(const std::vector<Suspicion>& suspicions,
               const std::vector<RankPosition>& positions,
               std::map<int, std::string> died = {},
               std::map<int, DepartedEvent> departed = {}) {
  Inquest inquest;
  inquest.suspicions = suspicions;
  for (const RankPosition& position : positions) {
    inquest.positions.emplace(position.rank, position);
  }
  inquest.died = std::move(died);
  inquest.departed = std::move(departed);
  return diagnose(inquest);
}

/// A world of threads that has come to turn `calls.size()`.
struct Threads {
  explicit Threads(const std::vector<CollectiveCall>& calls) {
    for (const CollectiveCall& call : calls) {
      for (int member = 0; member < 3; ++member) {
        group.launch(member);
        REQUIRE_FALSE(group.arrive(member, call));
      }
      for (int member = 0; member < 3; ++member) {
        group.advance(member, Stage::left);
      }
    }
  }
  LocalGroup group{{0, 1, 2}};
};

TEST_CASE("a deadline passed is told as in a world of threads") {
  Suspicion suspicion = suspect(Kind::timeout, 0, gather(2), 1);
  suspicion.waited_ms = 2015;
  const auto waited = std::chrono::milliseconds{2015};

  SUBCASE("a rank has launched nothing more") {
    Threads threads({gather(1)});
    threads.group.arrive(0, gather(2));
    threads.group.arrive(1, gather(2));
    const Failure right = threads.group.timed_out(0, waited);
    CHECK(decide({suspicion}, {at(0, {gather(1), gather(2)}), at(1, {gather(1), gather(2)}),
                               at(2, {gather(1)})}) == right);
    CHECK(right.rank == 2);
    CHECK(right.ticket == 2);
  }
  SUBCASE("two ranks are missing, one of which is stuck before it") {
    Threads threads({gather(1)});
    threads.group.arrive(0, gather(2));
    threads.group.launch(1);
    const Failure right = threads.group.timed_out(0, waited);
    CHECK(decide({suspicion}, {at(0, {gather(1), gather(2)}), at(1, {gather(1), gather(2)}, 1),
                               at(2, {gather(1)})}) == right);
    CHECK(right.text.find("its stream has not come to; rank 2 has") != std::string::npos);
  }
  SUBCASE("nobody has launched anything") {
    Threads threads({});
    threads.group.arrive(0, gather(1));
    Suspicion first = suspicion;
    first.turn = 0;
    first.call = logged(gather(1));
    CHECK(decide({first}, {at(0, {gather(1)}), {1, {}}, at(2, {})}) ==
          threads.group.timed_out(0, waited));
  }
}

TEST_CASE("a rank that does not answer is named") {
  Suspicion suspicion = suspect(Kind::timeout, 0, gather(1), 0);
  suspicion.waited_ms = 100;
  const Failure failure = decide({suspicion}, {at(0, {gather(1)}), at(1, {gather(1)})});
  CHECK(failure.code == ErrorCode::timeout);
  CHECK(failure.rank == 2);
  CHECK(failure.ticket == 1);
  CHECK(failure.text ==
        "rank 0 waited 100 ms for rank 2: expected all_gather of bucket 3 'block.1' (ticket 1), 64 "
        "fp32 elements, actual: rank 2 does not answer");
}

TEST_CASE("where all take part and one does not finish, that one is named") {
  Suspicion suspicion = suspect(Kind::timeout, 0, gather(2), 1);
  suspicion.peer = 1;
  const std::vector<CollectiveCall> calls{gather(1), gather(2)};
  RankPosition done = at(1, calls);
  done.groups[0].launches.back().stage = LaunchStage::ended;
  const Failure failure = decide({suspicion}, {at(0, calls), done, at(2, calls)});
  CHECK(failure.rank == 2);
  CHECK(failure.text.find("rank 2 takes part but does not finish") != std::string::npos);
  RankPosition also_done = done;
  also_done.rank = 2;
  CHECK(decide({suspicion}, {at(0, calls), done, also_done}).rank == 1);  // where it was seen
}

TEST_CASE("calls that differ are told as in a world of threads") {
  const std::array<CollectiveCall, 3> calls{gather(2), gather(2, 32), gather(2)};
  const std::array<int, 3> ranks{0, 1, 2};
  const Failure right = *compare_calls(calls, ranks);
  const std::vector<RankPosition> positions{
      at(0, {gather(1), calls[0]}), at(1, {gather(1), calls[1]}), at(2, {gather(1), calls[2]})};
  for (const Kind kind : {Kind::mismatch, Kind::timeout, Kind::connection}) {
    for (int rank = 0; rank < 3; ++rank) {
      CAPTURE(rank);
      CHECK(decide({suspect(kind, rank, calls[static_cast<std::size_t>(rank)], 1)}, positions) ==
            right);
    }
  }
}

TEST_CASE("of two calls that differ the lower rank's counts where a third is not known") {
  const Failure failure =
      decide({suspect(Kind::mismatch, 1, gather(2, 32), 1)},
             {at(0, {gather(1), gather(2)}), at(1, {gather(1), gather(2, 32)})});
  CHECK(failure.code == ErrorCode::mismatch);
  CHECK(failure.rank == 1);
  CHECK(failure.ticket == 2);
}

TEST_CASE("a mismatch with a rank that does not answer names both") {
  Suspicion suspicion = suspect(Kind::mismatch, 1, gather(2), 1);
  suspicion.peer = 0;
  suspicion.text = "all_gather of 32 elements";
  const Failure failure = decide({suspicion}, {at(1, {gather(1), gather(2)})});
  CHECK(failure.rank == 0);
  CHECK(failure.text ==
        "rank 0 launched another collective than rank 1: expected all_gather of bucket 3 'block.1' "
        "(ticket 2), 64 fp32 elements, actual all_gather of 32 elements");
}

TEST_CASE("a rank that has left is told as in a world of threads") {
  Threads threads({gather(1)});
  threads.group.arrive(0, gather(2));
  const Failure right = *threads.group.leave(2, "rank 2 has left the world after step 1");
  const std::map<int, DepartedEvent> departed{
      {2, {2, "rank 2 has left the world after step 1", {{world, 1}}}}};
  CHECK(decide({suspect(Kind::timeout, 0, gather(2), 1)},
               {at(0, {gather(1), gather(2)}), at(1, {gather(1)}), at(2, {gather(1)})}, {},
               departed) == right);
  const LoggedLaunch second{1, logged(gather(2)), LaunchStage::begun};
  CHECK(awaits_departed(world, second, departed) == right);
  const LoggedLaunch first{0, logged(gather(1)), LaunchStage::begun};
  CHECK_FALSE(awaits_departed(world, first, departed));  // the rank has launched that one
  CHECK(awaits_departed({{0, 2}, 0}, first, departed));  // but nothing there
  CHECK_FALSE(awaits_departed({{0, 1}, 0}, first, departed));
}

TEST_CASE("a rank that is gone is named, and the collective that waits for it") {
  const std::map<int, std::string> died{{2, "rank 2 (pid 41 on host7) is gone: x"}};
  const std::string text =
      "all_gather of bucket 3 'block.1' (ticket 2) cannot end: rank 2 (pid 41 on host7) is gone: "
      "x";
  SUBCASE("of which a rank has told") {
    const Failure failure = decide({suspect(Kind::connection, 1, gather(2), 1)},
                                   {at(0, {gather(1)}), at(1, {gather(1), gather(2)})}, died);
    CHECK(failure.text == text);
    CHECK(failure.rank == 2);
    CHECK(failure.ticket == 2);
    CHECK(failure.bucket == 3);
    CHECK(failure.code == ErrorCode::peer_failed);
  }
  SUBCASE("which shows in a position") {
    CHECK(decide({}, {at(0, {gather(1), gather(2)}), at(1, {})}, died).text == text);
  }
  SUBCASE("or none waits") {
    RankPosition idle = at(0, {gather(1)});
    idle.groups[0].launches[0].stage = LaunchStage::ended;
    const Failure failure = decide({}, {idle, at(1, {})}, died);
    CHECK(failure.text == died.at(2));
    CHECK(failure.ticket == 0);
  }
}

TEST_CASE("a dropped collective counts before all else") {
  Suspicion dropped = suspect(Kind::dropped, 1, gather(2), 1);
  dropped.text = "stream 'reduce': bad kernel";
  const Failure failure =
      decide({suspect(Kind::connection, 0, gather(2), 1), dropped}, {}, {{1, "died"}});
  CHECK(failure.text ==
        "rank 1 dropped all_gather of bucket 3 'block.1' (ticket 2): stream 'reduce': bad kernel");
  CHECK(failure.rank == 1);
  CHECK(failure.code == ErrorCode::peer_failed);
}

TEST_CASE("a lost connection names its other end, if nothing better is known") {
  Suspicion suspicion = suspect(Kind::connection, 0, gather(2), 1);
  suspicion.text = "Connection reset by peer";
  const std::vector<CollectiveCall> calls{gather(1), gather(2)};
  CHECK(decide({suspicion}, {at(0, calls), at(1, calls)}).rank == 2);  // who does not answer
  suspicion.peer = 1;
  const Failure failure = decide({suspicion}, {at(0, calls), at(1, calls), at(2, calls)});
  CHECK(failure.rank == 1);
  CHECK(failure.text ==
        "rank 0 lost its connection to rank 1 in all_gather of bucket 3 'block.1' (ticket 2): "
        "Connection reset by peer; rank 1 takes part but does not finish");
  suspicion.peer = -1;
  CHECK(decide({suspicion}, {at(0, calls), at(1, calls), at(2, calls)}).rank == -1);
}

}  // namespace
}  // namespace troupe::test
