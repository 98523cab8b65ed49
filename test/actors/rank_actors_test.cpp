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

}  // namespace
}  // namespace troupe::test
