/// Where the time of steps goes, as the trainer's thread sees it. Pure: times are passed in.
///
/// [Note: the time of a step] A step lasts from the return of `finish_gradients` to that of the
/// next; the first begins with the first micro-batch. So it holds the update with the gradients of
/// the step before, and whatever else the trainer did between.
///
///     compute  a use or an update, of any runtime of the rank, was open on the trainer's thread
///              (several at once count once), less what was waited for in it
///     exposed  the thread waited for communication, for collectives of the trainer's own too
///     other    the rest: the trainer's own code between, the work of the calls themselves
///
/// The three add up exactly. A use or an update on a worker stream goes on after the calls have
/// returned: the thread sees neither what was computed nor what of the communication was exposed,
/// and of such a step nothing is said. A trace shows both.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace troupe {

/// Three parts that add up to the whole, exactly.
struct StepTime {
  std::chrono::nanoseconds compute{};
  std::chrono::nanoseconds exposed{};
  std::chrono::nanoseconds other{};

  std::chrono::nanoseconds total() const { return compute + exposed + other; }
  StepTime& operator+=(const StepTime& more) {
    compute += more.compute;
    exposed += more.exposed;
    other += more.other;
    return *this;
  }
  bool operator==(const StepTime&) const = default;
};

/// Keeps the books of one rank: what is open now, and how much was computed so far. `waited` is
/// always the time that the thread has waited for communication so far.
class TrainerTime {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  /// Sums up to a moment.
  struct Reading {
    Time time;
    Duration compute{};
    Duration waited{};
    std::uint64_t on_streams = 0;
  };

  /// A use or an update on the trainer's thread; what is open at the same time counts once.
  void begin_compute(Time now, Duration waited) {
    if (open_++ == 0) {
      began_ = now;
      waited_before_ = waited;
    }
  }
  void end_compute(Time now, Duration waited) {
    if (--open_ == 0) {
      compute_ += now - began_ - (waited - waited_before_);
    }
  }
  /// One on a worker stream: what it takes is not seen here.
  void compute_on_stream() { ++on_streams_; }

  Reading read(Time now, Duration waited) const {
    const Duration open = open_ > 0 ? now - began_ - (waited - waited_before_) : Duration::zero();
    return {now, compute_ + open, waited, on_streams_};
  }

 private:
  Duration compute_{};
  std::uint64_t on_streams_ = 0;
  std::uint32_t open_ = 0;
  Time began_;                ///< of the oldest that is open
  Duration waited_before_{};  ///< that began
};

/// What lies between two readings; nothing if something was computed on a worker stream meanwhile,
/// since then the thread does not see what was computed and what waited.
inline std::optional<StepTime> between(const TrainerTime::Reading& begin,
                                       const TrainerTime::Reading& end) {
  if (begin.on_streams != end.on_streams) {
    return std::nullopt;
  }
  const auto compute = end.compute - begin.compute;
  const auto exposed = end.waited - begin.waited;
  return StepTime{compute, exposed, end.time - begin.time - compute - exposed};
}

}  // namespace troupe
