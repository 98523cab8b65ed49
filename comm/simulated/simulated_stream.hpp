/// A stream in virtual time: a FIFO whose operations take as long as they are said to, or as the
/// world they wait for takes.
///
/// Waits, and operations that take no time, happen at once when the stream comes to them; all else
/// happens through the timeline, when its driver lets it. Thread rules: one thread.
#pragma once

#include "troupe/comm/simulated/access_log.hpp"
#include "troupe/comm/simulated/timeline.hpp"
#include "troupe/comm/stream.hpp"

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// What a simulated device has to do with the world around it.
struct SimulatedSurroundings {
  Timeline* timeline = nullptr;
  AccessLog* accesses = nullptr;
  int rank = 0;
  /// How long a kernel takes that touches so many bytes; empty: no time.
  std::function<Duration(std::int64_t bytes)> kernel_time{};
  /// Called before each kernel or piece of work; a failure fails the stream instead. May be empty.
  std::function<std::optional<Failure>(const std::string& stream)> fault{};
};

class SimulatedStream final : public Stream {
 public:
  SimulatedStream(std::string name, const SimulatedSurroundings& surroundings);
  ~SimulatedStream() override;
  SimulatedStream(const SimulatedStream&) = delete;
  SimulatedStream& operator=(const SimulatedStream&) = delete;

  /// Work that takes `duration`: it uses `accesses` all that time, and its effect is there at the
  /// end. `what` and `number` name it.
  void run(const char* what,
           std::uint64_t number,
           Duration duration,
           std::vector<Access> accesses,
           std::function<void()> work);

  /// An operation that something else ends: `start` is called when the stream comes to it, and then
  /// `finish` has to be called once. `dropped` is called instead of `start`, or of `finish`, if the
  /// stream fails or stops.
  void enqueue(std::function<void()> start, std::function<void()> dropped);
  void finish(std::optional<Failure> failure = {});

  /// Fails the stream and drops what is on it.
  void stop();
  /// Virtual time spent in `run` and in kernels.
  Duration busy() const { return busy_time_; }

  // Stream
  const std::string& name() const override { return name_; }
  Event record() override { return {this, issued_}; }
  void wait(Event event) override;
  bool reached(std::uint64_t point) const override { return reached_ >= point; }
  void notify(std::function<void(const StreamReport&)> callback) override;
  void subscribe(Wakeable& waiter) override { subscribers_.push_back(&waiter); }
  std::optional<Failure> failure() const override { return failure_; }
  bool idle() const override { return queue_.empty(); }
  Result<void> recover() override;

 private:
  /// An operation or a notification.
  struct Item {
    std::function<void()> start;
    std::function<void()> dropped;
    std::function<void(const StreamReport&)> callback;
    std::uint64_t point = 0;  ///< of an operation
  };
  struct Awaited {
    std::uint64_t point;
    SimulatedStream* stream;
  };

  void push(Item item);
  void pump();
  void start_wait(Event event);
  void wake();
  void fail(const Failure& failure);

  const std::string name_;
  const SimulatedSurroundings& surroundings_;
  std::deque<Item> queue_;
  std::uint64_t issued_ = 0;
  std::uint64_t reached_ = 0;
  std::optional<Failure> failure_;
  std::vector<Awaited> awaited_;  // by streams that wait for a point of this one
  std::vector<Wakeable*> subscribers_;
  std::optional<Event> waiting_;  // the head is a wait for this
  Timeline::Id timer_ = 0;
  AccessLog::Id access_ = 0;
  bool running_ = false;  // the head has been started
  bool pumping_ = false;
  bool stopped_ = false;
  TimePoint started_{};
  TimePoint finished_{};
  Duration busy_time_{};
};

}  // namespace troupe
