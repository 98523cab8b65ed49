/// Ends a wait of one thread for messages from another thread.
///
/// Thread rules: `raise` from any thread; the rest from the thread that waits.
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

/// Once raised, every wait ends, also those to come.
class Interruption {
 public:
  void raise();
  bool raised() const;
  /// For a new collective.
  void clear();

  enum class Way : std::uint8_t { receive, send };
  /// Waits until the earliest receive into, or send from, `buffer` is done: true; false when
  /// raised. Throws what Gloo throws: a lost connection, or `deadline` long passed.
  bool wait(gloo::transport::UnboundBuffer& buffer, Way way, TimePoint deadline);

 private:
  mutable std::mutex mutex_;  // guards what follows
  bool raised_ = false;
  gloo::transport::UnboundBuffer* waited_for_ = nullptr;
};

/// Raises interruptions at their time, from a thread of its own. Gloo's own timeouts close the
/// connections first and report afterwards, so that peers may be heard before who has timed out.
class Alarm {
 public:
  Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  ~Alarm();

  using Id = std::pair<TimePoint, std::uint64_t>;
  Id set(TimePoint time, Interruption& interruption);
  /// On return the interruption is not touched any more.
  void clear(const Id& id);

 private:
  void work();

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<Id, Interruption*> pending_;
  std::uint64_t next_ = 0;
  bool ending_ = false;

  std::thread worker_;
};

}  // namespace troupe
