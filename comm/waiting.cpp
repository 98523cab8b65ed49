#include "troupe/comm/waiting.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>

#include <algorithm>
#include <ctime>
#include <thread>
#include <unistd.h>

namespace troupe {

namespace {

constexpr std::uint32_t asleep = 1;            // bit 0
constexpr std::uint32_t one_notification = 2;  // the rest

/// No sleep is longer, so that even a notification lost to the wrap of the count costs no more.
constexpr Duration sleep_max = std::chrono::milliseconds(200);

/// Looks at `ready` between two readings of the clock while polling: about 1 µs.
constexpr int looks_per_clock_reading = 20;

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value, Duration at_most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  timespec limit{};
  limit.tv_sec = static_cast<std::time_t>(seconds.count());
  limit.tv_nsec = static_cast<long>(std::chrono::nanoseconds(at_most - seconds).count());
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
  // Returns early for a signal or for no reason too; the caller looks again in any case.
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &limit, nullptr, 0);
}

void wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace

const Clock& Clock::steady() {
  static const SteadyClock clock;
  return clock;
}

// Both sides change the word by read-modify-write operations, which have one order. If the addition
// comes first, the owner reads from it and sees what was written before it; if the owner's bit
// comes first, the addition finds the bit and wakes, and the changed count keeps the owner from
// sleeping.

void FutexWaiter::notify() {
  const std::uint32_t before = word_.fetch_add(one_notification, std::memory_order_acq_rel);
  if ((before & asleep) != 0) {
    word_.fetch_and(~asleep, std::memory_order_acq_rel);
    wake(word_);
  }
}

bool FutexWaiter::wait(FunctionRef<bool()> ready, TimePoint deadline) {
  if (ready()) {
    return true;
  }
  if (poll_ > Duration::zero()) {
    const TimePoint poll_end = std::min(deadline, std::chrono::steady_clock::now() + poll_);
    while (std::chrono::steady_clock::now() < poll_end) {
      for (int look = 0; look < looks_per_clock_reading; ++look) {
        if (ready()) {
          return true;
        }
        relax();
      }
    }
  }
  for (;;) {
    const std::uint32_t seen = word_.fetch_or(asleep, std::memory_order_acq_rel) | asleep;
    const bool is_ready = ready();
    const TimePoint now = std::chrono::steady_clock::now();
    if (is_ready || now >= deadline) {
      word_.fetch_and(~asleep, std::memory_order_acq_rel);
      return is_ready;
    }
    sleep_while(word_, seen, std::min(sleep_max, deadline - now));
  }
}

}  // namespace troupe
