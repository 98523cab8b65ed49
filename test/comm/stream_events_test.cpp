#include "support/draw.hpp"
#include "support/settle.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <vector>

namespace troupe {
namespace {

using test::Random;
using test::settle;
using test::step_all;

TEST_CASE("what is issued after a wait begins after the event") {
  HostDevice device(StreamWorkers::manual);
  HostStream& first = device.create_host_stream("first");
  HostStream& second = device.create_host_stream("second");
  bool written = false;
  bool read = false;
  first.run([&written] { written = true; });
  first.run([] {});
  second.wait(first.record());
  second.run([&] { read = written; });
  CHECK_FALSE(second.step());
  CHECK(first.step());
  CHECK_FALSE(second.step());
  CHECK(first.step());
  CHECK(second.step());
  CHECK(second.step());
  CHECK(read);
}

TEST_CASE("a blocked manual stream is ready again when what it waits for is done") {
  HostDevice device(StreamWorkers::manual);
  HostStream& first = device.create_host_stream("first");
  HostStream& second = device.create_host_stream("second");
  CHECK_FALSE(first.ready());
  first.run([] {});
  first.run([] {});
  second.wait(first.record());
  CHECK(first.ready());
  CHECK(second.ready());  // not tried yet
  CHECK_FALSE(second.step());
  CHECK_FALSE(second.ready());
  first.step();
  CHECK(first.ready());
  CHECK_FALSE(second.ready());
  first.step();
  CHECK_FALSE(first.ready());
  CHECK(second.ready());
  CHECK(second.step());
  CHECK_FALSE(second.ready());
}

TEST_CASE("waits for events that are done, or of the stream itself, hold up nothing") {
  HostDevice device(StreamWorkers::manual);
  HostStream& first = device.create_host_stream("first");
  HostStream& second = device.create_host_stream("second");
  second.wait(Event{});
  second.wait(first.record());
  first.run([] {});
  first.wait(first.record());
  CHECK(second.idle());
  CHECK(step_all(device.streams()));
}

TEST_CASE("a stream may wait for an event of a stream of another device") {
  HostDevice one;
  HostDevice other;
  HostStream& first = one.create_host_stream("first");
  HostStream& second = other.create_host_stream("second");
  int value = 0;
  first.run([&value] { value = 1; });
  second.wait(first.record());
  second.run([&value] { value *= 10; });
  CHECK_FALSE(settle(second).failure);
  CHECK(value == 10);
}

TEST_CASE("no wake-up is lost between streams that wait for each other") {
  HostDevice device;
  HostStream& left = device.create_host_stream("left");
  HostStream& right = device.create_host_stream("right");
  constexpr int rounds = 5000;
  int value = 0;  // the events order every access
  std::vector<int> wrong;
  const TimePoint begin = Clock::steady().now();
  for (int round = 0; round < rounds; ++round) {
    left.wait(right.record());
    left.run([&value, &wrong, round] {
      if (value != 2 * round) {
        wrong.push_back(round);
      }
      ++value;
    });
    right.wait(left.record());
    right.run([&value] { ++value; });
  }
  CHECK_FALSE(settle(left).failure);
  CHECK_FALSE(settle(right).failure);
  CHECK(wrong.empty());
  CHECK(value == 2 * rounds);
  // Each lost one would cost the 20 ms until the next try.
  CHECK(Clock::steady().now() - begin < rounds * std::chrono::milliseconds(1));
}

TEST_CASE("random graphs of streams and events run in an order that the events allow") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto workers = seed % 2 == 0 ? StreamWorkers::threads : StreamWorkers::manual;
    HostDevice device(workers);
    constexpr std::size_t stream_count = 4;
    for (std::size_t i = 0; i < stream_count; ++i) {
      device.create_host_stream("stream " + std::to_string(i));
    }
    const auto streams = device.streams();
    std::vector<Event> events;
    std::atomic<int> early{0};
    for (int issue = 0; issue < 300; ++issue) {
      HostStream& stream = *streams[random.below(stream_count)];
      std::vector<Event> awaited;
      while (!events.empty() && random.below(3) > 0 && awaited.size() < 3) {
        awaited.push_back(events[random.below(events.size())]);
        stream.wait(awaited.back());
      }
      stream.run([awaited, &early] {
        for (const Event& event : awaited) {
          early += event.done() ? 0 : 1;
        }
      });
      events.push_back(stream.record());
    }
    if (workers == StreamWorkers::manual) {
      for (;;) {
        std::vector<HostStream*> ready;
        for (HostStream* stream : streams) {
          if (stream->ready()) {
            ready.push_back(stream);
          }
        }
        if (ready.empty()) {
          break;
        }
        ready[random.below(ready.size())]->step();
      }
      REQUIRE(test::all_idle(streams));  // else a wake-up was lost
    } else {
      for (HostStream* stream : streams) {
        REQUIRE_FALSE(settle(*stream).failure);
      }
    }
    REQUIRE(early == 0);
    for (const Event& event : events) {
      REQUIRE(event.done());
    }
  }
}

}  // namespace
}  // namespace troupe
