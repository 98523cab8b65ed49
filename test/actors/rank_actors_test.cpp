#include "troupe/actors/rank_actors.hpp"

#include "actor_bench.hpp"

#include <doctest/doctest.h>

#include <string>

namespace troupe::test {
namespace {

/// Runs the actors while it waits, unless everything stands still.
class DrivingWaiter final : public Waiter {
 public:
  explicit DrivingWaiter(ActorSystem& system) : system_(system) {}
  bool stands_still = false;
  void notify() override {}
  bool wait(FunctionRef<bool()> ready, TimePoint /*deadline*/) override {
    while (!ready() && !stands_still && system_.runnable() > 0) {
      system_.run(0);
    }
    return ready();
  }

 private:
  ActorSystem& system_;
};

struct OneRank {
  OneRank() : waiter(system), rank(system, config()) { RankActors::connect({&rank}); }
  RankConfig config() {
    RankConfig config;
    config.device = &device;
    Stream& stream = device.create_host_stream("collectives");
    config.queues = {RankConfig::Queue{&communicator, &stream},
                     RankConfig::Queue{&communicator, &stream}};
    config.waiter = &waiter;
    config.clock = &Clock::steady();
    config.timeout = std::chrono::seconds{10};
    config.report_failure = [](Failure failure) { return failure; };
    config.abort = [](const Failure&) {};
    config.trace = &trace;
    return config;
  }

  ActorSystem system{Executor::coordinator};
  DrivingWaiter waiter;
  HostDevice device{StreamWorkers::manual};
  NotingCommunicator communicator;
  RankTrace trace{100};
  RankActors rank;
};

std::string error_of_wait(OneRank& one) {
  try {
    one.rank.wait(7, [] { return false; }, "the gather", 3);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Found by the schedule 2202:0*8,2,0,2,0,1,3,5*3,6 of the model: a wait whose deadline passed
// returned as if it had succeeded when the supervisor did not get to run either, and the trainer
// took a ticket twice.
TEST_CASE("a wait that times out throws, also if the supervisor does not get to run") {
  const std::string text =
      "rank 0: waited too long for the gather of bucket 3 (ticket 7, launched up to 0)";
  for (const bool stands_still : {false, true}) {
    CAPTURE(stands_still);
    OneRank one;
    one.waiter.stands_still = stands_still;
    CHECK(error_of_wait(one) == text);
    CHECK(one.rank.failed() == !stands_still);
    REQUIRE(one.trace.spans().size() == 1);  // of all waits the one to be seen
    CHECK(one.trace.spans()[0].row == RankTrace::waits_row);
    CHECK(one.trace.spans()[0].ticket == 7);
    CHECK(one.trace.spans()[0].failed);
    one.waiter.stands_still = false;
    CHECK(error_of_wait(one) == text);
    CHECK(one.rank.failed());
  }
}

// ---- failures of ranks that are elsewhere -------------------------------------------------------

void run_all(OneRank& one) {
  while (one.system.runnable() > 0) {
    one.system.run(0);
  }
}

std::string failure_of(OneRank& one) {
  run_all(one);
  return one.rank.failed() ? one.rank.state().failure.text : "none";
}

TEST_CASE("a failure from elsewhere stops the actors of its epoch, and only these") {
  OneRank one;
  const auto renew = [&] {
    REQUIRE(one.rank.end());
    one.rank.renew({&one.communicator, &one.communicator});
  };
  one.rank.peer_failed(2, {.text = "in epoch 2"});  // another rank is there already
  CHECK(failure_of(one) == "none");
  one.rank.peer_failed(1, {.text = "in epoch 1"});
  one.rank.peer_failed(1, {.text = "again"});
  CHECK(failure_of(one) == "in epoch 1");
  REQUIRE(one.rank.end());
  one.rank.peer_failed(1, {.text = "late"});
  one.rank.renew({&one.communicator, &one.communicator});
  CHECK(failure_of(one) == "in epoch 2");
  renew();
  one.rank.peer_failed(2, {.text = "later"});
  CHECK(failure_of(one) == "none");
  REQUIRE(one.rank.end());
  one.rank.peer_failed(4, {.text = "in epoch 4"});  // between two epochs
  one.rank.renew({&one.communicator, &one.communicator});
  CHECK(failure_of(one) == "in epoch 4");
}

}  // namespace
}  // namespace troupe::test
