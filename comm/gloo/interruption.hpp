/// Ends a wait of one thread for messages from another thread.
///
/// Thread rules: `raise` and `nudge` from any thread; the rest from the thread that waits.
#pragma once

#include "troupe/comm/waiting.hpp"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace gloo::transport {
class UnboundBuffer;
}

namespace troupe {

class Interruption {
 public:
  /// Every wait ends, also those to come.
  void raise();
  bool raised() const;
  /// Who waits looks around, and goes on waiting.
  void nudge();

  enum class Way : std::uint8_t { receive, send };
  /// Waits until the earliest receive into, or send from, `buffer` is done: true; false when
  /// raised. `look` is called when nudged. Throws what `look` and Gloo throw: a lost connection.
  bool wait(gloo::transport::UnboundBuffer& buffer, Way way, FunctionRef<void()> look);

 private:
  void end_wait();

  mutable std::mutex mutex_;  // guards what follows
  bool raised_ = false;
  gloo::transport::UnboundBuffer* waited_for_ = nullptr;
};

/// Nudges interruptions every now and then, and raises them at their time, from a thread of its
/// own. (Gloo's own timeouts close the connections first and report afterwards, so that peers may
/// be heard before who has timed out.)
class Alarm {
 public:
  explicit Alarm(Duration nudge_interval = std::chrono::milliseconds{100});
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  ~Alarm();

  using Id = std::uint64_t;
  Id set(TimePoint time, Interruption& interruption);
  /// On return the interruption is not touched any more.
  void clear(Id id);

 private:
  struct Pending {
    TimePoint time;
    TimePoint next;  ///< nudge, or `time`
    Interruption* interruption;
  };

  void work();
  TimePoint ring(TimePoint now);

  const Duration nudge_interval_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<Id, Pending> pending_;  // few: one for each collective under way
  Id next_id_ = 0;
  /// When the thread looks next. Not put off when what it is for is cleared: a collective that ends
  /// soon costs no wake-up.
  TimePoint wake_ = TimePoint::max();
  bool ending_ = false;

  std::thread worker_;
};

}  // namespace troupe
