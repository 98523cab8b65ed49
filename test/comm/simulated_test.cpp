// The simulated device and network by themselves: what takes how long, and that faults show.
#include "troupe/comm/simulated/simulated_device.hpp"
#include "troupe/comm/simulated/simulated_fabric.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

namespace troupe::test {
namespace {

using Microseconds = std::chrono::microseconds;

TimePoint at(int us) {
  return TimePoint{} + Microseconds{us};
}

/// Two ranks, a device and a stream each, one communicator.
struct Bench {
  explicit Bench(SimulatedNetwork network = {})
      : accesses([this](const std::string& text) { conflicts.push_back(text); }),
        fabric(2, timeline, accesses, std::move(network)) {
    for (int rank = 0; rank < 2; ++rank) {
      devices.push_back(std::make_unique<SimulatedDevice>(
          SimulatedSurroundings{.timeline = &timeline, .accesses = &accesses, .rank = rank}));
      streams.push_back(&devices.back()->create_simulated_stream("s" + std::to_string(rank)));
      communicators.push_back(fabric.communicator(rank, {0, 1}, 0));
    }
  }
  Result<void> all_gather(int rank, Ticket ticket, const float* own, float* all) {
    return communicators[static_cast<std::size_t>(rank)]->launch(
        {.op = Collective::all_gather, .ticket = ticket, .input = own, .output = all, .numel = 2},
        *streams[static_cast<std::size_t>(rank)]);
  }
  void run_all() {
    while (timeline.size() > 0) {
      timeline.run();
    }
  }

  Timeline timeline;
  std::vector<std::string> conflicts;
  AccessLog accesses;
  SimulatedFabric fabric;
  std::vector<std::unique_ptr<SimulatedDevice>> devices;
  std::vector<SimulatedStream*> streams;
  std::vector<std::unique_ptr<Communicator>> communicators;
};

TEST_CASE("work takes its time, waits for events, and reports when it ran") {
  Bench bench;
  std::vector<std::string> order;
  std::vector<TimePoint> times;
  bench.streams[0]->run("a", 1, Microseconds{5}, {}, [&] { order.push_back("a"); });
  const Event a = bench.streams[0]->record();
  bench.streams[1]->wait(a);
  bench.streams[1]->run("b", 2, Microseconds{3}, {}, [&] { order.push_back("b"); });
  bench.streams[1]->notify([&](const StreamReport& report) {
    CHECK_FALSE(report.failure.has_value());
    times = {report.started, report.finished};
  });
  CHECK_FALSE(a.done());
  bench.run_all();
  CHECK(a.done());
  CHECK(order == std::vector<std::string>{"a", "b"});
  CHECK(times == std::vector<TimePoint>{at(5), at(8)});
  CHECK(bench.streams[1]->busy() == Microseconds{3});
}

TEST_CASE("a collective begins when the last rank comes, and lasts as long as the network says") {
  Bench bench({.time = [](const CollectiveCall&, int) { return Microseconds{10}; },
               .delay = [](int rank) { return Microseconds{rank}; }});
  float own[2][2] = {{1, 2}, {3, 4}};
  float all[2][4] = {};
  bench.streams[1]->run("late", 1, Microseconds{7}, {}, [] {});
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(bench.all_gather(rank, 1, own[rank], all[rank]));
  }
  std::vector<TimePoint> ends(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    bench.streams[rank]->notify(
        [&, rank](const StreamReport& report) { ends[rank] = report.finished; });
  }
  bench.run_all();
  CHECK(ends == std::vector<TimePoint>{at(17), at(18)});
  for (const auto& gathered : all) {
    CHECK(std::vector<float>(gathered, gathered + 4) == std::vector<float>{1, 2, 3, 4});
  }
  CHECK(bench.fabric.moving_time() == Microseconds{10});
  CHECK(bench.conflicts.empty());
}

TEST_CASE("a buffer that is written while a collective reads it is reported with both users") {
  Bench bench({.time = [](const CollectiveCall&, int) { return Microseconds{10}; }});
  float own[2][2] = {};
  float all[2][4] = {};
  CHECK(bench.all_gather(0, 7, own[0], all[0]));
  CHECK(bench.all_gather(1, 7, own[1], all[1]));
  bench.devices[0]->zero(Stream::caller(), own[0], sizeof own[0]);
  CHECK(bench.conflicts ==
        std::vector<std::string>{"zero 1 on rank 0 writes what all_gather 7 on rank 0 reads"});
  bench.run_all();
  bench.devices[0]->zero(Stream::caller(), own[0], sizeof own[0]);  // now nobody does
  CHECK(bench.conflicts.size() == 1);
}

TEST_CASE("memory that is freed while it is used is reported") {
  Bench bench;
  {
    const Buffer buffer = bench.devices[0]->allocate(64, Purpose::temporary).value();
    bench.streams[0]->run("work", 3, Microseconds{5}, {{buffer.data(), 8, false}}, [] {});
  }
  CHECK(bench.conflicts ==
        std::vector<std::string>{"free of memory 0 on rank 0 writes what work 3 on rank 0 reads"});
  bench.run_all();
}

TEST_CASE("a rank that does not come is named when the deadline has passed") {
  Bench bench({.timeout = std::chrono::seconds{3}});
  float own[2] = {};
  float all[4] = {};
  CHECK(bench.all_gather(0, 9, own, all));
  std::string failed;
  bench.streams[0]->notify([&](const StreamReport& report) { failed = report.failure->text; });
  bench.run_all();
  CHECK(bench.timeline.now() == TimePoint{} + std::chrono::seconds{3});
  CHECK(failed.find("rank 0 waited too long for rank 1") != std::string::npos);
  CHECK(failed.find("ticket 9") != std::string::npos);
  CHECK(bench.fabric.first_failure().get()->rank == 1);
}

TEST_CASE("a planned error fails the collective on all ranks, and all that follow") {
  Bench bench({.fault = [](const CollectiveCall& call) {
    return SimulatedFault{
        call.ticket == 1 ? SimulatedFault::Kind::error : SimulatedFault::Kind::none, 1};
  }});
  float own[2][2] = {};
  float all[2][4] = {};
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(bench.all_gather(rank, 1, own[rank], all[rank]));
  }
  bench.run_all();
  for (const SimulatedStream* stream : bench.streams) {
    REQUIRE(stream->failure().has_value());
    CHECK(stream->failure()->text == "rank 1: simulated error in all_gather (ticket 1)");
  }
  CHECK_FALSE(bench.all_gather(0, 2, own[0], all[0]));
  CHECK(bench.accesses.size() == 0);
}

TEST_CASE("calls that differ fail before payload moves") {
  Bench bench;
  float own[2][2] = {{1, 2}, {3, 4}};
  float all[2][4] = {};
  CHECK(bench.all_gather(0, 1, own[0], all[0]));
  CHECK(bench.all_gather(1, 2, own[1], all[1]));
  bench.run_all();
  CHECK(bench.fabric.first_failure().get()->code == ErrorCode::mismatch);
  CHECK(all[0][2] == 0.0F);
}

TEST_CASE("points of time come in order, unless the driver takes them out of turn") {
  Timeline timeline;
  std::vector<int> order;
  timeline.after(Microseconds{2}, nullptr, [&] { order.push_back(2); });
  timeline.after(Microseconds{1}, nullptr, [&] { order.push_back(1); });
  const auto cancelled = timeline.after(Microseconds{1}, nullptr, [&] { order.push_back(9); });
  timeline.after(Microseconds{1}, nullptr, [&] { order.push_back(3); });
  timeline.cancel(cancelled);
  CHECK(timeline.next_count() == 2);
  timeline.run(2);  // the one at 2 us, early
  CHECK(timeline.now() == at(2));
  CHECK(timeline.next_count() == 2);
  timeline.run(1);
  timeline.run();
  CHECK(order == std::vector<int>{2, 3, 1});
  CHECK(timeline.now() == at(2));  // it never goes back
}

}  // namespace
}  // namespace troupe::test
