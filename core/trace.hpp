/// The trace: what each rank did when, as spans on rows and counters over time. Made by who embeds
/// Troupe, handed to a world (`WorldOptions::trace`), read when the world has ended; written as a
/// file by runtime/chrome_trace.hpp.
///
///     row                what its spans are
///     steps              steps of a runtime, see core/step_time.hpp
///     compute            uses and updates that compute on the trainer's thread
///     compute on <name>  uses that compute on the trainer's stream of that name
///     gather, reduce     collectives, each on its stream, with the casts and sums around them
///     waits              calls of the trainer that waited, and for which ticket
///
/// Spans of one row never overlap: a use that is open while another one is has a row of its own
/// ("compute 2"). Times are those of the world's clock.
///
/// Thread rules: records come from any thread; a rank's own lock is held for each of them. Memory
/// is bounded: what comes after the limit is counted and dropped.
#pragma once

#include "troupe/core/bucket_state.hpp"
#include "troupe/core/ids.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

using TraceTime = std::chrono::steady_clock::time_point;

/// Index of a row of a rank; see `RankTrace::rows`.
using TraceRow = std::uint32_t;

struct TraceSpan {
  TraceRow row = 0;
  std::string_view what{};   ///< "forward", "all_gather": a literal
  std::string_view label{};  ///< whose: "block.1"; what `RankTrace` returns is its own copy
  TraceTime begin{};
  TraceTime end{};
  Ticket ticket = 0;  ///< of the collective, also of one that is waited for; 0: none
  BucketId bucket = no_bucket;
  bool failed = false;  ///< it was dropped or abandoned, or its stream failed
};

/// Buckets by state, in the order of `BucketState`, over all runtimes of a rank, as each bucket
/// sees itself; bytes of slots held, as the scheduler sees it.
enum class TraceCounter : std::uint8_t {
  sharded,
  gathering,
  in_use,
  ready,
  failed,
  unsharded_bytes,
  gradient_bytes,
};
inline constexpr std::size_t trace_counter_count = 7;
static_assert(static_cast<std::size_t>(TraceCounter::failed) + 1 == bucket_state_count);

constexpr TraceCounter counter_of(BucketState state) {
  return static_cast<TraceCounter>(state);
}

struct TraceCount {
  TraceCounter counter = TraceCounter::sharded;
  TraceTime time{};
  std::int64_t value = 0;  ///< from `time` on
};

/// What one rank records.
class RankTrace {
 public:
  static constexpr TraceRow gather_row = 0;
  static constexpr TraceRow reduce_row = 1;
  static constexpr TraceRow waits_row = 2;

  explicit RankTrace(std::size_t records_max) : records_max_(records_max) {}
  RankTrace(const RankTrace&) = delete;
  RankTrace& operator=(const RankTrace&) = delete;
  ~RankTrace() = default;

  // What cannot be kept, at the limit or for want of memory, is dropped; so is a span that ends
  // before it begins or is of no row.

  void add(const TraceSpan& span) noexcept;
  /// The counter changes by `change`.
  void count(TraceCounter counter, std::int64_t change, TraceTime time) noexcept;

  /// A row for spans of `source` (a stream; null: the trainer's thread), until it is given back:
  /// spans that are open at once have different ones. The first is called `name`, the next
  /// `name 2`.
  TraceRow acquire_row(const void* source, std::string_view name);
  void release_row(TraceRow row);

  // To be read; copies.

  /// By row, then by time.
  std::vector<TraceSpan> spans() const;
  /// By time.
  std::vector<TraceCount> counts() const;
  /// Names; index: `TraceRow`.
  std::vector<std::string> rows() const;
  std::uint64_t dropped() const;

 private:
  struct Row {
    const void* source = nullptr;
    std::string name;
    bool acquired = false;
  };
  bool full() const { return spans_.size() + counts_.size() >= records_max_; }

  const std::size_t records_max_;
  mutable std::mutex mutex_;  // guards what follows
  std::deque<TraceSpan> spans_;
  std::deque<TraceCount> counts_;
  std::uint64_t dropped_ = 0;
  std::array<std::int64_t, trace_counter_count> values_{};
  std::set<std::string, std::less<>> labels_;  // those of `spans_`
  std::vector<Row> rows_{{.name = "gather"}, {.name = "reduce"}, {.name = "waits"}};
};

/// All ranks of a world.
class Trace {
 public:
  /// `records_max_per_rank`: spans (72 bytes each) and counts (24).
  explicit Trace(std::size_t records_max_per_rank = 1'000'000)
      : records_max_per_rank_(records_max_per_rank) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  ~Trace() = default;

  /// Made at the first call for that rank; lives as long as the trace.
  RankTrace& of_rank(int rank);
  int rank_count() const;
  const RankTrace& operator[](int rank) const;

 private:
  const std::size_t records_max_per_rank_;
  mutable std::mutex mutex_;     // guards the list
  std::deque<RankTrace> ranks_;  // stay in place
};

}  // namespace troupe
