/// Time and waiting, replaceable: production threads sleep on a futex word, single-thread tests run
/// something else meanwhile. Every wait of Troupe has a deadline.
#pragma once

#include "troupe/core/function_ref.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>

namespace troupe {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;

  /// The machine's steady clock; lives for ever.
  static const Clock& steady();
};

/// Something that may be asleep until progress is made elsewhere. `notify` may be called from any
/// thread, cheaply (one atomic addition when nobody sleeps), and never blocks.
class Wakeable {
 public:
  Wakeable() = default;
  Wakeable(const Wakeable&) = delete;
  Wakeable& operator=(const Wakeable&) = delete;
  virtual ~Wakeable() = default;
  virtual void notify() = 0;
};

/// How one thread waits. `wait` is called by one thread at a time; `ready` is called repeatedly on
/// that thread and has to be cheap. Whoever makes `ready` true calls `notify` afterwards.
class Waiter : public Wakeable {
 public:
  /// True as soon as `ready()` holds; false when `deadline` has passed and it does not.
  virtual bool wait(FunctionRef<bool()> ready, TimePoint deadline) = 0;
};

/// Waiter on a futex word: polls for `poll` (0: not at all), then sleeps.
/// Polling helps only where there is a core for every thread that polls.
class FutexWaiter final : public Waiter {
 public:
  explicit FutexWaiter(Duration poll = Duration::zero()) : poll_(poll) {}
  void notify() override;
  bool wait(FunctionRef<bool()> ready, TimePoint deadline) override;

 private:
  // Bit 0: the owner sleeps. The rest counts notifications, so that none is lost between the last
  // look at `ready` and falling asleep.
  alignas(64) std::atomic<std::uint32_t> word_{0};
  Duration poll_;
};

}  // namespace troupe
