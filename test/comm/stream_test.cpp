#include "support/fake_clock.hpp"
#include "support/settle.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace troupe {
namespace {

using test::FakeClock;
using test::settle;

TEST_CASE("a stream runs what is issued to it in order, on a thread of its own") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  std::vector<int> order;
  std::thread::id thread;
  for (int i = 0; i < 1000; ++i) {
    stream.run([&order, &thread, i] {
      order.push_back(i);
      thread = std::this_thread::get_id();
    });
  }
  CHECK_FALSE(settle(stream).failure);
  REQUIRE(order.size() == 1000);
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(order[static_cast<std::size_t>(i)] == i);
  }
  CHECK(thread != std::this_thread::get_id());
}

TEST_CASE("an event is done when everything issued before it is done, and not earlier") {
  HostDevice device(StreamWorkers::manual);
  HostStream& stream = device.create_host_stream("compute");
  CHECK(Event{}.done());
  CHECK(stream.record().done());  // nothing was issued
  stream.run([] {});
  const Event first = stream.record();
  stream.run([] {});
  const Event second = stream.record();
  CHECK(stream.record() == second);
  CHECK_FALSE(first.done());
  CHECK(stream.step());
  CHECK(first.done());
  CHECK_FALSE(second.done());
  CHECK_FALSE(stream.idle());
  CHECK(stream.step());
  CHECK(second.done());
  CHECK(stream.idle());
  CHECK_FALSE(stream.step());
}

TEST_CASE("an operation is destroyed before its event is done") {
  struct Look final : Wakeable {
    std::shared_ptr<int> held = std::make_shared<int>(0);
    long users_seen = 0;
    void notify() override { users_seen = held.use_count(); }
  } look;
  HostDevice device(StreamWorkers::manual);
  HostStream& stream = device.create_host_stream("compute");
  stream.subscribe(look);
  stream.run([held = look.held] {});
  stream.step();
  CHECK(look.users_seen == 1);
}

TEST_CASE("a blocked operation holds up what is behind it until it is tried again") {
  HostDevice device(StreamWorkers::manual);
  HostStream& stream = device.create_host_stream("compute");
  bool open = false;
  bool behind = false;
  int tries = 0;
  stream.enqueue([&]() -> Result<Progress> {
    ++tries;
    return open ? Progress::done : Progress::blocked;
  });
  stream.run([&behind] { behind = true; });
  CHECK_FALSE(stream.step());
  CHECK_FALSE(stream.step());
  CHECK(tries == 2);
  CHECK_FALSE(behind);
  open = true;
  CHECK(stream.step());
  CHECK(stream.step());
  CHECK(behind);
}

TEST_CASE("a blocked operation is tried again without any notification, for its deadline's sake") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  std::atomic<int> tries{0};
  stream.enqueue(
      [&tries]() -> Result<Progress> { return ++tries == 3 ? Progress::done : Progress::blocked; });
  CHECK_FALSE(settle(stream).failure);
  CHECK(tries == 3);
}

TEST_CASE("a blocked operation sleeps: it is not tried over and over") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  const TimePoint begin = Clock::steady().now();
  std::atomic<int> tries{0};
  stream.enqueue([&tries, begin]() -> Result<Progress> {
    ++tries;
    return Clock::steady().now() - begin > std::chrono::milliseconds(200) ? Progress::done
                                                                          : Progress::blocked;
  });
  settle(stream);
  CHECK(tries <= 12);  // one at once, then every 20 ms
}

TEST_CASE("a notification wakes a blocked operation, and none is lost") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  constexpr int rounds = 5000;
  const TimePoint begin = Clock::steady().now();
  for (int round = 0; round < rounds; ++round) {
    std::atomic<bool> open{false};
    stream.enqueue(
        [&open]() -> Result<Progress> { return open.load() ? Progress::done : Progress::blocked; });
    const Event event = stream.record();
    if (round % 2 == 0) {
      std::this_thread::yield();
    }
    open.store(true);
    static_cast<Wakeable&>(stream).notify();
    settle(stream);
    REQUIRE(event.done());
  }
  // A lost one would cost the 20 ms until the next try.
  CHECK(Clock::steady().now() - begin < rounds * std::chrono::milliseconds(1));
}

TEST_CASE("a notification while the operation is tried is not lost") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  constexpr int rounds = 100;
  const TimePoint begin = Clock::steady().now();
  for (int round = 0; round < rounds; ++round) {
    stream.enqueue([&stream, tried = false]() mutable -> Result<Progress> {
      if (!tried) {
        tried = true;
        static_cast<Wakeable&>(stream).notify();  // a peer, after this operation has looked
        return Progress::blocked;
      }
      return Progress::done;
    });
  }
  CHECK_FALSE(settle(stream).failure);
  // Lost ones would cost 20 ms each, until the next try.
  CHECK(Clock::steady().now() - begin < rounds * std::chrono::milliseconds(10));
}

TEST_CASE("notifications come in order, after what was issued before them, with its times") {
  FakeClock clock;
  HostDevice device(StreamWorkers::manual, clock);
  HostStream& stream = device.create_host_stream("compute");
  const TimePoint zero = clock.now();
  const auto ms = [](int count) { return std::chrono::milliseconds(count); };
  std::vector<std::string> order;
  std::vector<StreamReport> reports;
  const auto note = [&](const std::string& name) {
    stream.notify([&order, &reports, name](const StreamReport& report) {
      order.push_back(name);
      reports.push_back(report);
    });
  };
  bool open = false;
  stream.enqueue([&]() -> Result<Progress> { return open ? Progress::done : Progress::blocked; });
  note("a");
  note("b");
  stream.run([&clock, ms] { clock.advance(ms(7)); });
  note("c");
  CHECK_FALSE(stream.step());  // begun at 0
  clock.advance(ms(3));
  open = true;
  CHECK(stream.step());
  CHECK(order.empty());
  while (stream.step()) {
  }
  CHECK(order == std::vector<std::string>{"a", "b", "c"});
  CHECK(reports[0].started == zero);
  CHECK(reports[0].finished == zero + ms(3));
  CHECK(reports[1].started == zero);
  CHECK(reports[2].started == zero + ms(3));
  CHECK(reports[2].finished == zero + ms(10));
  for (const StreamReport& report : reports) {
    CHECK_FALSE(report.failure);
  }
}

TEST_CASE("a notification of an idle stream comes too") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  CHECK_FALSE(settle(stream).failure);
  CHECK_FALSE(settle(stream).failure);
}

TEST_CASE("a callback may issue to its own stream") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  auto ran = std::make_shared<std::promise<void>>();
  stream.notify([&stream, ran](const StreamReport&) { stream.run([ran] { ran->set_value(); }); });
  CHECK(ran->get_future().wait_for(test::patience) == std::future_status::ready);
}

TEST_CASE("a subscriber is notified of progress") {
  FutexWaiter waiter;
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  stream.subscribe(waiter);
  for (int round = 0; round < 1000; ++round) {
    stream.run([] {});
    const Event event = stream.record();
    REQUIRE(waiter.wait([&event] { return event.done(); }, Clock::steady().now() + test::patience));
  }
}

TEST_CASE("several threads may issue to one stream") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  int count = 0;  // changed on the worker only
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&stream, &count] {
      for (int issue = 0; issue < 1000; ++issue) {
        stream.run([&count] { ++count; });
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  settle(stream);
  CHECK(count == 4000);
}

TEST_CASE("on the caller's stream everything is done on return") {
  Stream& caller = Stream::caller();
  CHECK(caller.is_caller());
  CHECK(caller.record() == Event{});
  CHECK(caller.reached(1000));
  CHECK_FALSE(caller.failure());
  caller.wait(Event{});

  HostDevice device(StreamWorkers::manual);
  HostStream& stream = device.create_host_stream("gathers");
  stream.run([] {});
  try {
    caller.wait(stream.record());
    FAIL("an event that is not done was accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::misuse);
    CHECK(std::string(error.what()).find("'gathers'") != std::string::npos);
  }
  CHECK_THROWS_AS(caller.notify([](const StreamReport&) {}), Error);
  stream.step();
  caller.wait(stream.record());
}

}  // namespace
}  // namespace troupe
