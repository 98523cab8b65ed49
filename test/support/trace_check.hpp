/// What has to hold of any trace, and how tests look into one.
#pragma once

#include "ranks.hpp"
#include "troupe/core/trace.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

namespace troupe::test {

/// Spans by row and name, in the order of time: "compute: forward L0" → how many.
using SpanCounts = std::map<std::string, int>;

inline std::string name_of(const TraceSpan& span) {
  std::string name(span.what);
  return span.label.empty() ? name : name + " " + std::string(span.label);
}

inline SpanCounts span_counts(const RankTrace& trace) {
  SpanCounts counts;
  const std::vector<std::string> rows = trace.rows();
  for (const TraceSpan& span : trace.spans()) {
    ++counts[rows[span.row] + ": " + name_of(span)];
  }
  return counts;
}

inline std::vector<TraceSpan> spans_of(const RankTrace& trace, const std::string& row) {
  const std::vector<std::string> rows = trace.rows();
  std::vector<TraceSpan> spans = trace.spans();
  std::erase_if(spans, [&](const TraceSpan& span) { return rows[span.row] != row; });
  return spans;
}

/// A counter's value after the last change.
inline std::int64_t last_value(const RankTrace& trace, TraceCounter counter) {
  std::int64_t value = 0;
  for (const TraceCount& count : trace.counts()) {
    value = count.counter == counter ? count.value : value;
  }
  return value;
}

inline std::int64_t largest_value(const RankTrace& trace, TraceCounter counter) {
  std::int64_t largest = 0;
  for (const TraceCount& count : trace.counts()) {
    largest = std::max(largest, count.counter == counter ? count.value : 0);
  }
  return largest;
}

/// Empty if no span ends before it begins, none begins before the one before it on its row has
/// ended, and the spans of collectives are those of `launches`, one for each, in that order.
inline std::string trace_faults(const RankTrace& trace, const std::vector<LaunchRecord>& launches) {
  std::string faults;
  const std::vector<TraceSpan> spans = trace.spans();
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].end < spans[i].begin) {
      faults += name_of(spans[i]) + " ends before it begins\n";
    }
    if (i > 0 && spans[i - 1].row == spans[i].row && spans[i].begin < spans[i - 1].end) {
      faults += name_of(spans[i]) + " overlaps " + name_of(spans[i - 1]) + "\n";
    }
  }
  std::array<std::vector<std::string>, channel_count> expected;
  for (const LaunchRecord& launch : launches) {
    expected[static_cast<std::size_t>(launch.channel)].push_back(
        std::string(to_string(launch.op)) + " " + launch.label +
        (launch.axis == GroupAxis::world ? "" : std::string(" over ") + to_string(launch.axis)) +
        " " + std::to_string(launch.ticket) + " " + std::to_string(launch.bucket));
  }
  std::array<std::vector<std::string>, channel_count> found;
  for (const TraceSpan& span : spans) {
    const bool on_channel = span.row == RankTrace::gather_row || span.row == RankTrace::reduce_row;
    if (on_channel && span.what != "cast" && span.what != "keep" && span.what != "overwrite" &&
        span.what != "accumulate") {
      found[span.row == RankTrace::gather_row ? 0 : 1].push_back(
          name_of(span) + " " + std::to_string(span.ticket) + " " + std::to_string(span.bucket));
    }
  }
  for (std::size_t channel = 0; channel < channel_count; ++channel) {
    if (found[channel] != expected[channel]) {
      faults += "channel " + std::to_string(channel) + ": " +
                std::to_string(found[channel].size()) + " spans are not the " +
                std::to_string(expected[channel].size()) + " launches\n";
    }
  }
  return faults;
}

}  // namespace troupe::test
