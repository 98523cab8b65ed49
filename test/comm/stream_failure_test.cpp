#include "support/settle.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace troupe {
namespace {

using test::settle;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("after a failure the rest is dropped and no later point is reached") {
  for (const auto workers : {StreamWorkers::threads, StreamWorkers::manual}) {
    HostDevice device(workers);
    HostStream& stream = device.create_host_stream("compute");
    bool behind = false;
    stream.run([] {});
    const Event before = stream.record();
    stream.enqueue([]() -> Result<Progress> {
      return Failure{.code = ErrorCode::timeout, .text = "too late", .rank = 2};
    });
    const Event at = stream.record();
    stream.run([&behind] { behind = true; });
    const Event after = stream.record();
    if (workers == StreamWorkers::manual) {
      test::step_all(device.streams());
    } else {
      CHECK(settle(stream).failure.has_value());
    }
    REQUIRE(stream.failure().has_value());
    CHECK(*stream.failure() == Failure{.code = ErrorCode::timeout, .text = "too late", .rank = 2});
    CHECK(before.done());
    CHECK_FALSE(at.done());
    CHECK_FALSE(after.done());
    CHECK_FALSE(behind);
    stream.run([&behind] { behind = true; });
    CHECK_FALSE(stream.record().done());
    if (workers == StreamWorkers::manual) {
      CHECK(test::step_all(device.streams()));
    } else {
      CHECK(settle(stream).failure.has_value());
    }
    CHECK_FALSE(behind);
  }
}

TEST_CASE("the first failure stays") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  stream.run([] { throw std::runtime_error("first"); });
  stream.run([] { throw std::runtime_error("second"); });
  settle(stream);
  stream.stop();
  CHECK(contains(stream.failure()->text, "first"));
}

TEST_CASE("an exception fails the stream with its text and the stream's name") {
  HostDevice device;
  const auto failure_of = [&device](std::function<void()> work) {
    HostStream& stream = device.create_host_stream("compute");
    stream.run(std::move(work));
    return *settle(stream).failure;
  };
  const Failure plain = failure_of([] { throw std::runtime_error("boom at layer 2"); });
  CHECK(plain.code == ErrorCode::device);
  CHECK(contains(plain.text, "boom at layer 2"));
  CHECK(contains(plain.text, "'compute'"));
  const Failure own{.code = ErrorCode::misuse, .text = "no such bucket", .bucket = 7};
  CHECK(failure_of([own] { throw Error(own); }) == own);
  CHECK(contains(failure_of([] { throw 42; }).text, "'compute'"));
}

TEST_CASE("a stream that waits for a failed one fails with the same failure") {
  for (const auto workers : {StreamWorkers::threads, StreamWorkers::manual}) {
    HostDevice device(workers);
    HostStream& first = device.create_host_stream("first");
    HostStream& second = device.create_host_stream("second");
    HostStream& third = device.create_host_stream("third");
    std::atomic<bool> open{false};
    first.run([] {});
    const Event good = first.record();
    first.enqueue([&open]() -> Result<Progress> {
      return open ? Result<Progress>(Failure{.code = ErrorCode::device, .text = "boom"})
                  : Progress::blocked;
    });
    second.wait(good);
    second.run([] {});
    const Event reached = second.record();
    second.wait(first.record());  // registered before the failure with manual streams
    bool behind = false;
    second.run([&behind] { behind = true; });
    third.wait(second.record());
    third.run([&behind] { behind = true; });
    if (workers == StreamWorkers::manual) {
      test::step_all(device.streams());
    }
    open = true;
    if (workers == StreamWorkers::manual) {
      test::step_all(device.streams());
    } else {
      settle(first);
      settle(second);
      settle(third);
    }
    CHECK(reached.done());
    REQUIRE(third.failure());
    CHECK(third.failure()->text == "boom");
    CHECK(second.failure()->text == "boom");
    CHECK_FALSE(behind);

    HostStream& late = device.create_host_stream("late");
    late.wait(good);  // reached before the failure
    CHECK(late.idle());
    late.wait(first.record());
    if (workers == StreamWorkers::manual) {
      test::step_all(device.streams());
    } else {
      settle(late);
    }
    CHECK(late.failure()->text == "boom");
  }
}

TEST_CASE("pending notifications are delivered with the failure, in order") {
  HostDevice device(StreamWorkers::manual);
  HostStream& stream = device.create_host_stream("compute");
  std::vector<std::pair<int, bool>> delivered;
  const auto note = [&](int name) {
    stream.notify([&delivered, name](const StreamReport& report) {
      delivered.emplace_back(name, report.failure.has_value());
    });
  };
  stream.run([] {});
  note(1);
  stream.run([] { throw std::runtime_error("boom"); });
  note(2);
  stream.run([] {});
  note(3);
  test::step_all(device.streams());
  note(4);
  test::step_all(device.streams());
  CHECK(delivered ==
        std::vector<std::pair<int, bool>>{{1, false}, {2, true}, {3, true}, {4, true}});
}

TEST_CASE("a subscriber is notified of a failure") {
  FutexWaiter waiter;
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  stream.subscribe(waiter);
  stream.run([] { throw std::runtime_error("boom"); });
  CHECK(waiter.wait([&stream] { return stream.failure().has_value(); },
                    Clock::steady().now() + test::patience));
}

TEST_CASE("stopping drops what is queued and tells who waits") {
  for (const auto workers : {StreamWorkers::threads, StreamWorkers::manual}) {
    HostDevice device(workers);
    HostStream& stream = device.create_host_stream("gathers");
    HostStream& other = device.create_host_stream("compute");
    auto dropped = std::make_shared<int>(0);
    std::vector<std::string> told;
    bool behind = false;
    std::promise<void> came_to_first;
    stream.run([] {});
    const Event first = stream.record();
    stream.notify([&came_to_first](const StreamReport&) { came_to_first.set_value(); });
    stream.enqueue([dropped]() -> Result<Progress> { return Progress::blocked; });
    stream.run([&behind, dropped] { behind = true; });
    stream.notify([&told](const StreamReport& report) { told.push_back(report.failure->text); });
    const Event last = stream.record();
    other.wait(last);
    if (workers == StreamWorkers::manual) {
      test::step_all(device.streams());
    }
    came_to_first.get_future().wait();
    stream.stop();
    stream.stop();
    CHECK(dropped.use_count() == 1);
    CHECK(told == std::vector<std::string>{"stream 'gathers' was stopped"});
    CHECK(stream.failure()->code == ErrorCode::device);
    CHECK(first.done());
    CHECK_FALSE(last.done());
    CHECK_FALSE(behind);
    if (workers == StreamWorkers::manual) {
      test::step_all(device.streams());
    } else {
      settle(other);
    }
    CHECK(other.failure()->text == "stream 'gathers' was stopped");

    // What is issued later is dropped at once.
    stream.run([&behind, dropped] { behind = true; });
    stream.notify([&told](const StreamReport& report) { told.push_back(report.failure->text); });
    CHECK(dropped.use_count() == 1);
    CHECK(told.size() == 2);
    CHECK_FALSE(stream.record().done());
    CHECK_FALSE(stream.step());
    CHECK(stream.idle());
  }
}

TEST_CASE("stopping awaits an operation under way, which counts as done") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  std::promise<void> begun;
  std::promise<void> go_on;
  bool ended = false;
  stream.run([&] {
    begun.set_value();
    go_on.get_future().wait();
    ended = true;
  });
  const Event event = stream.record();
  begun.get_future().wait();
  std::thread stopper([&stream] { stream.stop(); });
  go_on.set_value();
  stopper.join();
  CHECK(ended);
  CHECK(event.done());
  CHECK(stream.failure()->text == "stream 'compute' was stopped");
}

TEST_CASE("a stream may be stopped from its own worker") {
  HostDevice device;
  HostStream& stream = device.create_host_stream("compute");
  stream.run([&stream] { stream.stop(); });
  const Event event = stream.record();
  stream.run([] {});
  CHECK(settle(stream).failure->text == "stream 'compute' was stopped");
  CHECK(event.done());
}

TEST_CASE("streams with queued work and events between them are destroyed in any order") {
  for (int round = 0; round < 50; ++round) {
    HostDevice device(round % 2 == 0 ? StreamWorkers::threads : StreamWorkers::manual);
    HostStream& first = device.create_host_stream("first");
    HostStream& second = device.create_host_stream("second");
    second.enqueue([]() -> Result<Progress> { return Progress::blocked; });
    first.wait(second.record());
    first.run([] {});
    second.wait(first.record());
    if (round % 4 == 1) {
      test::step_all(device.streams());
    }
  }
}

}  // namespace
}  // namespace troupe
