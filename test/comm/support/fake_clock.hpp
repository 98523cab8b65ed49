/// A clock that stands still until it is told to go on.
#pragma once

#include "troupe/comm/waiting.hpp"

#include <atomic>

namespace troupe::test {

class FakeClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(ticks_.load())); }
  void advance(Duration duration) { ticks_.fetch_add(duration.count()); }

 private:
  std::atomic<Duration::rep> ticks_{Duration(std::chrono::hours(1)).count()};
};

}  // namespace troupe::test
