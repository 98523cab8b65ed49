#include "support/local_ranks.hpp"
#include "support/settle.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

namespace troupe {
namespace {

using test::settle;

void run_all(HostDevice& device, HostStream& stream, StreamWorkers workers) {
  if (workers == StreamWorkers::manual) {
    test::step_all(device.streams());
  } else {
    settle(stream);
    while (!stream.idle()) {
      std::this_thread::yield();  // the callback is being removed
    }
  }
}

TEST_CASE("a stream that has failed works again once it is recovered") {
  for (const auto workers : {StreamWorkers::threads, StreamWorkers::manual}) {
    HostDevice device(workers);
    HostStream& stream = device.create_host_stream("compute");
    for (int round = 0; round < 3; ++round) {
      int ran = 0;
      stream.run([] { throw std::runtime_error("bad kernel"); });
      stream.run([&] { ++ran; });
      const Event dropped = stream.record();
      run_all(device, stream, workers);
      CHECK(stream.failure()->text == "stream 'compute': bad kernel");
      CHECK_FALSE(dropped.done());
      CHECK(stream.recover().ok());
      CHECK_FALSE(stream.failure().has_value());
      CHECK(dropped.done());  // nobody waits for it any more
      stream.run([&] { ran += 10; });
      const Event after = stream.record();
      CHECK((workers == StreamWorkers::threads || !after.done()));
      run_all(device, stream, workers);
      CHECK(after.done());
      CHECK(ran == 10);
      CHECK_FALSE(stream.failure().has_value());
    }
  }
}

TEST_CASE("a stream without a failure is left as it is") {
  HostDevice device(StreamWorkers::manual);
  HostStream& stream = device.create_host_stream("compute");
  stream.run([] {});
  test::step_all(device.streams());
  CHECK(stream.recover().ok());
  CHECK(stream.record().done());
  CHECK(Stream::caller().recover().ok());
  CHECK(Stream::caller().idle());
}

TEST_CASE("a stream that has work, or was stopped, cannot be recovered") {
  HostDevice device(StreamWorkers::manual);
  HostStream& stream = device.create_host_stream("compute");
  stream.run([] { throw std::runtime_error("bad kernel"); });
  stream.step();
  stream.run([] {});
  const Event event = stream.record();
  CHECK(stream.recover().failure().text ==
        "stream 'compute' still has work, so it cannot be recovered");
  CHECK_FALSE(event.done());
  stream.stop();
  CHECK(stream.recover().failure().text == "stream 'compute' was stopped and cannot be used again");
  CHECK(stream.failure()->text == "stream 'compute': bad kernel");
}

TEST_CASE("a world goes on in a new epoch, and what is under way in the old one does not matter") {
  test::LocalRanks ranks(3, StreamWorkers::manual);
  LocalWorld& world = ranks.world;
  const auto barrier_on_all = [&](std::vector<std::unique_ptr<Communicator>>& communicators) {
    for (int rank = 0; rank < 3; ++rank) {
      REQUIRE(communicators[static_cast<std::size_t>(rank)]
                  ->launch({.op = Collective::barrier, .ticket = 1}, ranks.stream(rank))
                  .ok());
    }
    test::step_all(ranks.streams());
  };
  world.abort({.code = ErrorCode::peer_failed, .text = "bad batch"});
  CHECK(world.first_failure().get()->text == "bad batch");
  std::vector<std::unique_ptr<Communicator>> renewed;
  for (int rank = 0; rank < 3; ++rank) {
    world.renew(2);  // each rank says so
    CHECK_FALSE(world.first_failure().get());
    renewed.push_back(world.communicator(rank, {0, 1, 2}, 0));
  }
  ranks.communicator(0).abort({.code = ErrorCode::peer_failed, .text = "of the old epoch"});
  CHECK_FALSE(
      ranks.communicator(1).launch({.op = Collective::barrier, .ticket = 7}, ranks.stream(1)).ok());
  barrier_on_all(renewed);
  for (const auto& failure : ranks.failures()) {
    CHECK_FALSE(failure);
  }
  CHECK(ranks.stream(0).record().done());
  CHECK_FALSE(world.first_failure().get());
  world.end({.code = ErrorCode::timeout, .text = "for good"});
  world.abort({.code = ErrorCode::peer_failed, .text = "later"});
  CHECK(world.first_failure().get()->text == "for good");
}

}  // namespace
}  // namespace troupe
