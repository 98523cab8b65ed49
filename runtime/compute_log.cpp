#include "troupe/runtime/compute_log.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe {

ComputeLog::Open ComputeLog::begin(Stream* stream) {
  Open open{.stream = stream, .began = now(), .row = 0, .reached = nullptr};
  if (stream == nullptr) {
    time_.begin_compute(open.began, rank_.waited());
  } else {
    time_.compute_on_stream();
  }
  if (RankTrace* const trace = rank_.config().trace; trace != nullptr) {
    open.row =
        trace->acquire_row(stream, stream == nullptr ? "compute" : "compute on " + stream->name());
    if (stream != nullptr) {
      open.reached = std::make_shared<TimePoint>(open.began);
      stream->notify([reached = open.reached](const StreamReport& before) {
        *reached = std::max(*reached, before.finished);
      });
    }
  }
  return open;
}

void ComputeLog::end(const Open& open, const char* what, std::string_view label, bool abandoned) {
  RankTrace* const trace = rank_.config().trace;
  if (open.stream == nullptr) {
    const TimePoint ended = now();
    time_.end_compute(ended, rank_.waited());
    if (trace != nullptr) {
      trace->add({.row = open.row,
                  .what = what,
                  .label = label,
                  .begin = open.began,
                  .end = ended,
                  .failed = abandoned});
    }
  } else if (trace != nullptr) {
    open.stream->notify([trace, row = open.row, what, label = std::string(label),
                         reached = open.reached, abandoned](const StreamReport& last) {
      trace->add({.row = row,
                  .what = what,
                  .label = label,
                  .begin = *reached,
                  .end = std::max(*reached, last.finished),
                  .failed = abandoned || last.failure.has_value()});
    });
  }
  if (trace != nullptr) {
    trace->release_row(open.row);
  }
}

TrainerTime::Reading ComputeLog::read() const {
  return time_.read(now(), rank_.waited());
}

}  // namespace troupe
