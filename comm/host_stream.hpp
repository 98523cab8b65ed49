/// A stream of the CPU: see host_device.hpp.
///
/// Operations run one at a time, in the order issued, on the worker (or in `step()`). After a
/// failure the rest is dropped, later points are never reached, and pending notifications are
/// delivered with the failure.
///
/// Thread rules: any thread issues, reads and notifies. `step()` and, with manual streams, `stop()`
/// are called by one thread at a time. An operation is destroyed on the thread that runs the
/// stream, before the stream reaches its point.
///
/// [Note: no lost wake-up] A worker clears `poked_`, tries the head operation, and sleeps unless
/// `poked_` is set again. Who makes an operation ready sets `poked_` afterwards. So either the try
/// saw the change, or the worker does not sleep.
#pragma once

#include "troupe/comm/host_device.hpp"

#include <atomic>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe {

class HostStream final : public Stream, public Wakeable {
 public:
  HostStream(std::string name, StreamWorkers workers, const Clock& clock);
  ~HostStream() override;
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  /// Runs `work` on the stream. An exception that leaves it fails the stream with the exception's
  /// text.
  void run(std::function<void()> work);
  void enqueue(HostOperation operation);
  /// Manual streams: tries the head, an operation or a notification, once. False if there was none
  /// or it is blocked.
  bool step();
  /// Manual streams: whether a step may get anywhere: there is a head, and it was not tried since
  /// it became the head or since the last notification. If no stream is ready, only the clock can
  /// change anything (deadlines). A step that ends blocked may have made another stream ready.
  bool ready() const;
  /// Stops the stream as the device's destructor does: an operation under way is awaited, the rest
  /// is dropped, and the stream has failed ("stream 'x' was stopped"). What is issued later is
  /// dropped at once. Idempotent. On the worker itself it only asks the worker to stop.
  void stop();

  // Stream
  const std::string& name() const override { return name_; }
  Event record() override { return {this, issued_.load(std::memory_order_acquire)}; }
  /// Fails this stream with the other one's failure if `event` can no longer be reached. An event
  /// of a stream that is no HostStream is looked at every 20 ms.
  void wait(Event event) override;
  bool reached(std::uint64_t point) const override {
    return reached_.load(std::memory_order_acquire) >= point;
  }
  /// After `stop()`, there being no other thread, `callback` is called before this returns.
  void notify(std::function<void(const StreamReport&)> callback) override;
  void subscribe(Wakeable& waiter) override;
  std::optional<Failure> failure() const override;
  bool idle() const override;
  Result<void> recover() override;

  // Wakeable: try the head operation again. Any thread; takes no lock.
  void notify() override;

 private:
  class EventWait;

  /// An operation or a notification.
  struct Item {
    HostOperation operation;
    std::function<void(const StreamReport&)> callback;
    std::uint64_t point = 0;  ///< of an operation
  };
  struct Awaited {
    std::uint64_t point;
    Wakeable* waiter;
  };
  enum class Advance : std::uint8_t { ran, blocked, empty };

  void work();
  Advance advance();
  Result<Progress> attempt(HostOperation& operation);
  Failure failure_of(const std::string& text) const;
  void drain();
  void push(Item item);
  void pop();
  void fail(Failure failure);
  void deliver(const std::function<void(const StreamReport&)>& callback);
  /// False if `point` is reached already, or never will be.
  bool wake_at(std::uint64_t point, Wakeable& waiter);
  void forget(Wakeable& waiter);

  const std::string name_;
  const StreamWorkers workers_;
  const Clock& clock_;

  std::atomic<std::uint64_t> issued_{0};   // changed under mutex_
  std::atomic<std::uint64_t> reached_{0};  // changed under mutex_
  std::atomic<bool> failed_{false};        // changed under mutex_
  std::atomic<bool> stopping_{false};
  std::atomic<bool> poked_{false};
  FutexWaiter waiter_;

  mutable std::mutex mutex_;  // guards the group below; never held while an item runs
  std::deque<Item> queue_;    // the runner uses the front item without the lock
  std::optional<Failure> failure_;
  std::vector<Awaited> awaited_;
  std::vector<Wakeable*> subscribers_;
  bool drained_ = false;  // nobody runs this stream any more

  // Of whoever runs the stream.
  bool begun_ = false;
  TimePoint started_{};
  TimePoint finished_{};

  std::mutex stop_mutex_;
  std::thread worker_;
};

}  // namespace troupe
