// One fault in a world of processes: every rank ends, soon, and says whose it was and where.
//
// Deadlines are 2 s here. A rank's end is counted from the fault on and has the deadline and 5 s.
#include "fault_checks.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

using std::chrono::seconds;

/// In worlds of 2, 3 and 4, at a point of the second step; once in rank 0, which serves the store.
template <class Check>
void in_each_world(const std::string& fault, Check check) {
  int at = points_per_step;
  for (const int ranks : {2, 3, 4}) {
    const int culprit = ranks == 3 ? 0 : ranks - 1;
    CAPTURE(fault);
    CAPTURE(ranks);
    CAPTURE(culprit);
    CAPTURE(at);
    FaultWorld world(ranks);
    world.of(culprit).fault = fault;
    world.of(culprit).at = at;
    at += 3;
    world.start();
    check(world, culprit);
  }
}

TEST_CASE("a world without a fault ends well, also when a rank is late") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    FaultWorld world(ranks);
    world.of(ranks - 1).fault = "late";
    world.of(ranks - 1).at = points_per_step + 2;
    world.start();
    const auto ends = world.wait(seconds{60});
    INFO(to_text(ends));
    for (const RankEnd& end : ends) {
      CHECK(end.status == 0);
      CHECK(end.out.find("step 4 sum ") != std::string::npos);
      CHECK(end.err == "");
      CHECK(end.out.find("[warning]") == std::string::npos);
    }
  }
}

TEST_CASE("a rank that is killed") {
  in_each_world("kill", [](FaultWorld& world, int culprit) {
    const auto ends = world.wait(limit);
    check_others(ends, {.culprit = culprit, .code = "peer failed", .own_words = culprit == 0});
    check_culprit(ends, culprit, -SIGKILL);
  });
}

TEST_CASE("a rank that is stopped, and goes on when all is over") {
  in_each_world("stop", [](FaultWorld& world, int culprit) {
    const auto ends = world.wait(limit, {culprit});
    check_others(ends, {.culprit = culprit, .own_words = culprit == 0});
    check_culprit(ends, culprit, 1);
  });
}

TEST_CASE("a rank that is stopped for less than the limit, whichever it is, is no fault") {
  for (const int stopped : {0, 1}) {
    CAPTURE(stopped);
    FaultWorld world(3);
    world.all([](RankOptions& options) {
      options.timeout = std::chrono::seconds{20};
      options.steps = 6;
    });
    world.of(stopped).fault = "stop";
    world.of(stopped).at = 2 * points_per_step;
    world.start();
    ChildProcess& process = world.process(stopped);
    CHECK(becomes_true([&] { return process.out().find("point ") != std::string::npos; }));
    std::this_thread::sleep_for(std::chrono::seconds{6});  // long enough for calls to need rank 0
    process.signal(SIGCONT);
    const auto ends = world.wait(std::chrono::seconds{60});
    INFO(to_text(ends));
    for (const RankEnd& end : ends) {
      CHECK(end.status == 0);
      CHECK(end.out.find("step 6 sum ") != std::string::npos);
    }
  }
}

TEST_CASE("a rank that ends by itself in the middle") {
  in_each_world("exit", [](FaultWorld& world, int culprit) {
    const auto ends = world.wait(limit);
    check_others(ends, {.culprit = culprit, .code = "peer failed", .own_words = culprit == 0});
    check_culprit(ends, culprit, 3);
  });
}

TEST_CASE("a rank that throws") {
  in_each_world("throw", [](FaultWorld& world, int culprit) {
    const auto ends = world.wait(limit);
    check_others(
        ends,
        {.culprit = culprit, .ticket = false, .code = "peer failed", .contains = "a bad batch"});
    check_culprit(ends, culprit, 1);
  });
}

TEST_CASE("a rank that leaves early") {
  in_each_world("leave", [](FaultWorld& world, int culprit) {
    const auto ends = world.wait(limit);
    check_others(ends, {.culprit = culprit, .code = "peer failed", .contains = "has left"});
    check_culprit(ends, culprit, 1);
  });
}

TEST_CASE("a rank that does not come to the next collective") {
  in_each_world("hang", [](FaultWorld& world, int culprit) {
    const auto ends = world.wait(limit);
    check_others(ends, {.culprit = culprit, .code = "timeout"});
    // It hears nothing itself, inside of its own code.
    CHECK_FALSE(ends[static_cast<std::size_t>(culprit)].status);
  });
}

TEST_CASE("a rank with another model, another dtype or another order is told from the others") {
  for (const std::string fault : {"model", "dtype", "order"}) {
    for (const int ranks : {3, 4}) {
      CAPTURE(fault);
      CAPTURE(ranks);
      const int culprit = ranks - 2;
      FaultWorld world(ranks);
      world.of(culprit).fault = fault;
      world.start();
      const auto ends = world.wait(limit);
      const bool at_construction = fault != "order";
      check_others(ends, {.culprit = culprit,
                          .ticket = !at_construction,
                          .code = at_construction ? "bad configuration" : "mismatch"});
      check_culprit(ends, culprit, 1);
    }
  }
}

TEST_CASE("a rank that comes late to a world that has failed hears why") {
  FaultWorld world(3);
  world.set(2, "WORLD_SIZE", "4");
  world.start_by(1, {"/bin/sh", "-c", "sleep 1; exec \"$@\"", "sh"});
  world.start();
  const auto ends = world.wait(limit);
  check_others(ends, {.culprit = 2, .ticket = false, .code = "bad configuration"});
}

TEST_CASE("ranks that wait for another one end at once when they are asked to") {
  FaultWorld world(3);
  world.start_by(2, {"/bin/sh", "-c", "sleep 1000", "sh"});
  world.start();
  std::this_thread::sleep_for(seconds{1});
  for (const int rank : {1, 0}) {
    world.process(rank).signal(SIGTERM);
  }
  for (const int rank : {1, 0}) {
    CAPTURE(rank);
    CHECK(world.process(rank).wait(seconds{5}) == -SIGTERM);
  }
}

TEST_CASE("a rank with another secret does not get in, and rank 0 tells of it") {
  FaultWorld world(2);
  world.set(1, "TROUPE_SECRET", "of another job");
  world.start();
  CHECK(world.process(1).wait(seconds{20}) == 1);
  CHECK(world.process(1).err().find("the job's secret is another one") != std::string::npos);
  CHECK(becomes_true([&] {
    const std::string out = world.process(0).out();
    return out.find("the store has lost client 127.0.0.1") != std::string::npos &&
           out.find(": the job's secret is another one") != std::string::npos;
  }));
}

TEST_CASE("a rank that was told another world size does not get in") {
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    FaultWorld world(ranks);
    world.set(ranks - 1, "WORLD_SIZE", std::to_string(ranks + 1));
    world.start();
    const auto ends = world.wait(limit);
    check_others(ends, {.culprit = ranks - 1, .ticket = false, .code = "bad configuration"});
    check_culprit(ends, ranks - 1, 1);
  }
}

}  // namespace
}  // namespace troupe::test
