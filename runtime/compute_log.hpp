/// What one rank's trainer computes: sums for the split of a step, spans for the trace.
///
/// On the trainer's thread a computation lasts from the return of the call that begins it to the
/// call that ends it. On a worker stream it lasts, in the trace, from when the stream gets to it
/// (it is issued, and what was issued before is done, waits for gathers included) to the end of the
/// last operation in it; the split of a step does not know it.
///
/// Thread rules: as the rank's calls.
#pragma once

#include "troupe/actors/rank_actors.hpp"
#include "troupe/core/step_time.hpp"

#include <memory>
#include <string_view>

namespace troupe {

class ComputeLog {
 public:
  /// A use or an update under way.
  struct Open {
    Stream* stream = nullptr;  ///< null: the trainer's thread
    TimePoint began;
    TraceRow row = 0;
    std::shared_ptr<TimePoint> reached;  ///< when the stream got to it; set on the stream
  };

  /// `rank` outlives it.
  explicit ComputeLog(const RankActors& rank) : rank_(rank) {}

  Open begin(Stream* stream);
  /// `what` is a literal. `abandoned`: an exception unwinds it.
  void end(const Open& open, const char* what, std::string_view label, bool abandoned);
  TrainerTime::Reading read() const;

 private:
  TimePoint now() const { return rank_.config().clock->now(); }

  const RankActors& rank_;
  TrainerTime time_;
};

}  // namespace troupe
