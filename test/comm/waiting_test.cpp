#include "troupe/comm/waiting.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace troupe {
namespace {

using std::chrono::milliseconds;

TimePoint soon(Duration duration) {
  return Clock::steady().now() + duration;
}

TEST_CASE("a waiter returns at once if it is ready, whatever the deadline") {
  FutexWaiter waiter;
  CHECK(waiter.wait([] { return true; }, TimePoint::max()));
  CHECK(waiter.wait([] { return true; }, TimePoint::min()));
}

TEST_CASE("a deadline that has passed ends the wait without a sleep") {
  FutexWaiter waiter;
  int looks = 0;
  CHECK_FALSE(waiter.wait(
      [&looks] {
        ++looks;
        return false;
      },
      TimePoint::min()));
  CHECK(looks >= 1);
}

TEST_CASE("a wait ends at its deadline, not before") {
  for (const Duration poll : {Duration::zero(), Duration(milliseconds(1))}) {
    FutexWaiter waiter(poll);
    const TimePoint deadline = soon(milliseconds(5));
    CHECK_FALSE(waiter.wait([] { return false; }, deadline));
    CHECK(Clock::steady().now() >= deadline);
  }
}

TEST_CASE("a notification before the wait is not needed, and does no harm") {
  FutexWaiter waiter;
  std::atomic<bool> ready{true};
  waiter.notify();
  waiter.notify();
  CHECK(waiter.wait([&ready] { return ready.load(); }, soon(std::chrono::seconds(60))));
  ready = false;
  CHECK_FALSE(waiter.wait([&ready] { return ready.load(); }, soon(milliseconds(1))));
}

TEST_CASE("a waiter that becomes ready at its last look is not late") {
  FutexWaiter waiter;
  int looks = 0;
  CHECK(waiter.wait([&looks] { return ++looks == 2; }, TimePoint::min()));
}

TEST_CASE("a notification during the last look before the sleep is not lost") {
  FutexWaiter waiter;
  const TimePoint begin = Clock::steady().now();
  constexpr int rounds = 20;
  for (int round = 0; round < rounds; ++round) {
    int looks = 0;
    bool ready = false;
    const auto look = [&] {
      const bool seen = ready;
      if (++looks == 2) {  // the second look is the one before the sleep
        ready = true;
        waiter.notify();
      }
      return seen;
    };
    CHECK(waiter.wait(look, soon(std::chrono::seconds(60))));
  }
  // Lost ones would cost 200 ms each: no sleep is longer.
  CHECK(Clock::steady().now() - begin < rounds * milliseconds(100));
}

// The sleep of a waiter is cut at 200 ms, so a lost notification shows as a slow round.
void play_ping_pong(Duration poll, int rounds) {
  FutexWaiter here(poll);
  FutexWaiter there(poll);
  std::atomic<int> ball{0};
  int returned = 0;
  const auto limit = std::chrono::seconds(60);
  std::thread partner([&] {
    for (int round = 0; round < rounds; ++round) {
      if (!there.wait([&] { return ball.load() == 2 * round + 1; }, soon(limit))) {
        return;
      }
      ball.store(2 * round + 2);
      here.notify();
    }
  });
  const TimePoint begin = Clock::steady().now();
  for (int round = 0; round < rounds; ++round) {
    ball.store(2 * round + 1);
    there.notify();
    if (!here.wait([&] { return ball.load() == 2 * round + 2; }, soon(limit))) {
      break;
    }
    ++returned;
  }
  partner.join();
  CHECK(returned == rounds);
  // A round costs some 10 µs; with one lost notification in 400 it would cost 500 µs.
  CHECK(Clock::steady().now() - begin < rounds * std::chrono::microseconds(500));
}

TEST_CASE("no notification is lost between two threads that sleep") {
  play_ping_pong(Duration::zero(), 20000);
}

TEST_CASE("no notification is lost between two threads that poll a little") {
  play_ping_pong(std::chrono::microseconds(5), 20000);
}

TEST_CASE("several threads may notify one waiter") {
  FutexWaiter waiter;
  constexpr int thread_count = 4;
  constexpr int additions = 5000;
  std::atomic<int> sum{0};
  std::vector<std::thread> threads;
  threads.reserve(thread_count);
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&] {
      for (int addition = 0; addition < additions; ++addition) {
        sum.fetch_add(1);
        waiter.notify();
      }
    });
  }
  CHECK(waiter.wait([&sum] { return sum.load() == thread_count * additions; },
                    soon(std::chrono::seconds(60))));
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace troupe
