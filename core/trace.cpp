#include "troupe/core/trace.hpp"

#include <algorithm>
#include <new>
#include <tuple>

namespace troupe {

void RankTrace::add(const TraceSpan& span) noexcept {
  const std::lock_guard lock(mutex_);
  if (full() || span.end < span.begin || span.row >= rows_.size()) {
    ++dropped_;
    return;
  }
  try {
    auto label = labels_.find(span.label);
    if (label == labels_.end()) {
      label = labels_.emplace(span.label).first;
    }
    spans_.push_back(span);
    spans_.back().label = *label;
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

void RankTrace::count(TraceCounter counter, std::int64_t change, TraceTime time) noexcept {
  const std::lock_guard lock(mutex_);
  const std::int64_t value = values_[static_cast<std::size_t>(counter)] += change;
  if (full()) {
    ++dropped_;
    return;
  }
  try {
    counts_.push_back({counter, time, value});
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

TraceRow RankTrace::acquire_row(const void* source, std::string_view name) {
  const std::lock_guard lock(mutex_);
  std::size_t same = 0;
  for (std::size_t row = waits_row + 1; row < rows_.size(); ++row) {
    if (rows_[row].source != source) {
      continue;
    }
    ++same;
    if (!rows_[row].acquired) {
      rows_[row].acquired = true;
      return static_cast<TraceRow>(row);
    }
  }
  std::string own(name);
  if (same > 0) {
    own += ' ' + std::to_string(same + 1);
  }
  rows_.push_back({.source = source, .name = std::move(own), .acquired = true});
  return static_cast<TraceRow>(rows_.size() - 1);
}

void RankTrace::release_row(TraceRow row) {
  const std::lock_guard lock(mutex_);
  rows_[row].acquired = false;
}

std::vector<TraceSpan> RankTrace::spans() const {
  std::vector<TraceSpan> spans;
  {
    const std::lock_guard lock(mutex_);
    spans.assign(spans_.begin(), spans_.end());
  }
  // Stable, and by both ends: of two without length at one time, the one recorded first is first.
  std::ranges::stable_sort(
      spans, {}, [](const TraceSpan& span) { return std::tuple(span.row, span.begin, span.end); });
  return spans;
}

std::vector<TraceCount> RankTrace::counts() const {
  std::vector<TraceCount> counts;
  {
    const std::lock_guard lock(mutex_);
    counts.assign(counts_.begin(), counts_.end());
  }
  std::ranges::stable_sort(counts, {}, &TraceCount::time);
  return counts;
}

std::vector<std::string> RankTrace::rows() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  names.reserve(rows_.size());
  for (const Row& row : rows_) {
    names.push_back(row.name);
  }
  return names;
}

std::uint64_t RankTrace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

RankTrace& Trace::of_rank(int rank) {
  const std::lock_guard lock(mutex_);
  while (ranks_.size() <= static_cast<std::size_t>(rank)) {
    ranks_.emplace_back(records_max_per_rank_);
  }
  return ranks_[static_cast<std::size_t>(rank)];
}

int Trace::rank_count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(ranks_.size());
}

const RankTrace& Trace::operator[](int rank) const {
  const std::lock_guard lock(mutex_);
  return ranks_.at(static_cast<std::size_t>(rank));
}

}  // namespace troupe
