/// Virtual time: a clock that moves only when its driver says so, and what is due when.
///
/// The driver decides which due action happens next; one that is passed over happens later than
/// planned, as it may on a real machine. Nothing here looks at a real clock.
///
/// Thread rules: one thread.
#pragma once

#include "troupe/comm/waiting.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace troupe {

/// Tells a driver what a step of the simulation touches, named by its address: steps that touch
/// nothing in common may be swapped without anybody seeing a difference. Touches that are not
/// `alone` may be swapped with each other, too: reads, or notifications.
using TouchObserver = std::function<void(const void* object, bool alone)>;

class Timeline final : public Clock {
 public:
  using Id = std::uint64_t;

  TimePoint now() const override { return now_; }

  /// Plans `action` for `due`, or for now if that has passed. `owner` is for the driver.
  Id at(TimePoint due, const void* owner, std::function<void()> action);
  Id after(Duration delay, const void* owner, std::function<void()> action) {
    return at(now_ + delay, owner, std::move(action));
  }
  /// An action that has happened or was cancelled before is ignored.
  void cancel(Id id);

  std::size_t size() const { return planned_.size(); }
  /// How many actions are due at the earliest time; they are the first ones.
  std::size_t next_count() const;
  TimePoint due(std::size_t index) const { return planned_[index].due; }
  const void* owner(std::size_t index) const { return planned_[index].owner; }
  /// Lets the `index`-th action happen, in order of time and then of planning. The clock moves to
  /// its time, unless it is there already.
  void run(std::size_t index = 0);

  void observe(TouchObserver observer) { observer_ = std::move(observer); }
  void touch(const void* object, bool alone = true) const {
    if (observer_) {
      observer_(object, alone);
    }
  }

 private:
  struct Planned {
    TimePoint due;
    Id id;
    const void* owner;
    std::function<void()> action;
  };

  TimePoint now_{};
  Id last_ = 0;
  std::vector<Planned> planned_;  // a few dozen, sorted
  TouchObserver observer_;
};

}  // namespace troupe
