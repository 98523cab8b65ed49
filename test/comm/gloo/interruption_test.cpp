#include "troupe/comm/gloo/interruption.hpp"

#include "troupe/test/comm/support/settle.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

namespace troupe::test {
namespace {

using std::chrono::steady_clock;

void await(const Interruption& interruption) {
  const TimePoint give_up = steady_clock::now() + patience;
  while (!interruption.raised() && steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  CHECK(interruption.raised());
}

TEST_CASE("an alarm raises what is due, not what is later or was cleared") {
  Alarm alarm;
  Interruption late;
  Interruption cleared;
  Interruption soon;
  Interruption overdue;
  const TimePoint now = steady_clock::now();
  alarm.set(now + std::chrono::hours{1}, late);
  const Alarm::Id id = alarm.set(now + std::chrono::milliseconds{20}, cleared);
  alarm.set(now + std::chrono::milliseconds{50}, soon);  // the thread sleeps till then
  alarm.clear(id);
  alarm.set(now - std::chrono::hours{1}, overdue);
  await(overdue);
  await(soon);
  CHECK_FALSE(late.raised());
  CHECK_FALSE(cleared.raised());
}

TEST_CASE("an alarm that is earlier than all others is in time") {
  Alarm alarm;
  Interruption late;
  Interruption soon;
  alarm.set(steady_clock::now() + std::chrono::hours{1}, late);
  alarm.set(steady_clock::now() + std::chrono::milliseconds{1}, soon);
  await(soon);
}

}  // namespace
}  // namespace troupe::test
