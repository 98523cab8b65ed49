/// The order of uses that the schedule predicts for one phase (training or eval), the place in it
/// that has been reached, and the record that becomes the next order. Part of `Schedule`.
///
///     segment 0 (micro-batch 0)          segment 1
///     F0  F1  F2  B2  B1  B0             F0  F1  F2  B2  B1  B0
///                     ^cursor   ^scan
///
/// The *cursor* stands just behind the last use that was found. The *scan* stands at or behind it:
/// whatever lies between the two is known to be held, so that a prefetch need not look at it again.
#pragma once

#include "troupe/core/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe {

/// A use of a unit as it is recorded and predicted.
struct PredictedUse {
  UnitId unit = 0;
  Pass pass = Pass::forward;
  bool operator==(const PredictedUse&) const = default;
};

class UseOrder {
 public:
  /// No position, or one beyond all others.
  static constexpr std::size_t nowhere = ~std::size_t{0};
  /// A phase that is longer is recorded up to here only (8 bytes a use): memory stays bounded.
  static constexpr std::size_t recorded_uses_max = std::size_t{1} << 20;

  /// `first`: one segment, until something is recorded.
  UseOrder(std::vector<PredictedUse> first,
           const std::vector<std::vector<BucketId>>& unit_buckets,
           std::size_t bucket_count);

  // The order. Positions count from 0 over all segments.

  std::size_t size() const { return order_.uses.size(); }
  const PredictedUse& at(std::size_t position) const { return order_.uses[position]; }
  std::vector<std::vector<PredictedUse>> segments() const;

  // The place reached.

  std::size_t cursor() const { return cursor_; }
  /// To the start of the segment of the micro-batch that begins (or of the last segment).
  void begin_segment();
  /// Just behind the first `use` at or after the cursor in the current segment, if there is one.
  void seek(PredictedUse use);
  /// The first use of a bucket at or after the cursor, or `nowhere`.
  std::size_t next_position(BucketId bucket) const;

  std::size_t scan() const { return scan_; }
  void set_scan(std::size_t position) { scan_ = position; }
  /// The bucket is not held any more: the scan must not stand behind its next use.
  void dropped(BucketId bucket);

  // The record.

  void record(PredictedUse use);
  /// What is recorded from here on belongs to the next segment.
  void end_segment();
  /// Takes the record as the order, unless it is empty, and goes back to the start.
  void adopt_record(const std::vector<std::vector<BucketId>>& unit_buckets);

 private:
  struct Segments {
    std::vector<PredictedUse> uses;
    std::vector<std::size_t> starts;  ///< of each segment; no segment is empty
    bool operator==(const Segments&) const = default;
  };

  /// Ascending positions per key, all in one vector.
  struct Positions {
    std::vector<std::size_t> first;  ///< per key, and the end
    std::vector<std::size_t> positions;
    std::size_t next(std::size_t key, std::size_t from) const;
  };

  void move_cursor(std::size_t position);
  void index(const std::vector<std::vector<BucketId>>& unit_buckets);

  Segments order_;
  Positions of_bucket_;
  Positions of_use_;
  std::size_t bucket_count_ = 0;

  std::size_t segment_ = 0;
  std::size_t cursor_ = 0;
  std::size_t scan_ = 0;

  Segments record_;
  bool segment_open_ = false;  ///< the record's last segment may grow
};

}  // namespace troupe
