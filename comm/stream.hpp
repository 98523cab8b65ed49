/// Streams and events, with CUDA's meaning on every device: a stream runs what is issued to it in
/// order, asynchronously; an event is a point in a stream.
///
/// A stream belongs to its device and lives as long. Any thread may issue to a stream; what two
/// threads issue at once is ordered in one way or the other.
#pragma once

#include "troupe/comm/waiting.hpp"
#include "troupe/core/error.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace troupe {

class Stream;

/// A point in a stream: done when everything issued to the stream before it is done. The default
/// event is always done. A value; valid as long as its stream.
struct Event {
  Stream* stream = nullptr;
  std::uint64_t point = 0;

  bool done() const;
  bool operator==(const Event&) const = default;
};

/// What `Stream::notify` reports.
struct StreamReport {
  std::optional<Failure> failure;  ///< the stream's first failure, if it has failed
  /// Of the operation issued just before the notification. Begun: first tried, even if it was
  /// blocked then. If it was dropped, both are the time of that.
  TimePoint started;
  TimePoint finished;
};

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  /// Host code that computes on the calling thread: everything issued is done on return, and its
  /// events are always done. Waiting for other streams' events is the caller's business there.
  static Stream& caller();

  virtual const std::string& name() const = 0;
  virtual bool is_caller() const { return false; }
  /// The point behind everything issued so far.
  virtual Event record() = 0;
  /// What is issued later begins after `event`. If the event's stream fails before it, so does this
  /// one, with that failure. On `caller()` the event has to be done: throws `Error` (misuse) if
  /// not.
  virtual void wait(Event event) = 0;
  /// Whether this stream has reached `point`. After a failure no later point is ever reached: what
  /// stood behind a failed operation must not look done.
  virtual bool reached(std::uint64_t point) const = 0;
  /// Calls back once, on a thread of the device, when everything issued so far is done, or has been
  /// dropped because the stream failed or was stopped. Callbacks of one stream come in the order of
  /// these calls. The callback neither blocks nor throws. Not for `caller()`: throws `Error`
  /// (misuse).
  virtual void notify(std::function<void(const StreamReport&)> callback) = 0;
  /// `waiter` is notified whenever this stream makes progress or fails. Before first use only;
  /// `waiter` outlives the stream.
  virtual void subscribe(Wakeable& waiter) = 0;
  /// The first failure of an operation on this stream, if any, since it was recovered.
  virtual std::optional<Failure> failure() const = 0;
  /// Whether nothing is left to do: no operation (running, blocked or queued), no notification.
  virtual bool idle() const = 0;
  /// Makes a stream that has failed usable again, once it is idle: what stood behind the failure
  /// was dropped. From then on every event recorded so far counts as done, whatever became of it.
  /// Changes nothing where nothing has failed. A failure (device) if the stream is not idle or
  /// cannot be used again.
  virtual Result<void> recover() = 0;
};

inline bool Event::done() const {
  return stream == nullptr || stream->reached(point);
}

}  // namespace troupe
