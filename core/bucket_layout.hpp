/// Where each parameter of a bucket lies, unsharded and on each rank. Pure.
///
/// Three parameters of 5, 4 and 3 elements, world size 2, alignment 4 elements:
///
///     element   0         4         8         12        16
///     full      |a a a a a . . .|b b b b|c c c .|          numel_padded 16
///     shards    |---- rank 0 ---|---- rank 1 ---|          shard_numel   8
///
/// Every parameter starts at a multiple of the alignment; the end is padded so that all ranks hold
/// shards of one size, itself a multiple of the alignment (in-place collectives stay aligned).
/// Gaps (".") belong to no parameter. They are zero in the main weights and in every reduced
/// gradient, and appear in no view, export or norm.
#pragma once

#include "troupe/core/ids.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

/// Elements [offset, offset + numel) of a buffer.
struct Range {
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  bool operator==(const Range&) const = default;
};

/// A part of one parameter that lies in one rank's shard.
struct ShardPiece {
  std::uint32_t index = 0;            ///< of the parameter within its bucket
  std::int64_t parameter_offset = 0;  ///< of the piece within the parameter
  std::int64_t shard_offset = 0;      ///< of the piece within the shard
  std::int64_t numel = 0;             ///< > 0
  bool operator==(const ShardPiece&) const = default;
};

class BucketLayout {
 public:
  /// `numels`: elements of each parameter (0 is allowed). `alignment_numel` ≥ 1, `world_size` ≥ 1.
  BucketLayout(std::span<const std::int64_t> numels, int world_size, std::int64_t alignment_numel);

  int world_size() const { return world_size_; }
  std::int64_t numel_padded() const { return shard_numel_ * world_size_; }
  std::int64_t shard_numel() const { return shard_numel_; }
  /// Where a parameter lies in the full buffer.
  const std::vector<Range>& parameters() const { return parameters_; }
  /// The slice of the full buffer that `rank` owns.
  Range shard(int rank) const { return {shard_numel_ * rank, shard_numel_}; }
  /// The pieces of parameters in the shard of `rank`, in order; empty for an empty shard.
  std::vector<ShardPiece> pieces(int rank) const;
  /// Ranges of the full buffer that belong to no parameter, in order; neighbours merged.
  const std::vector<Range>& gaps() const { return gaps_; }

 private:
  int world_size_;
  std::int64_t shard_numel_ = 0;
  std::vector<Range> parameters_;
  std::vector<Range> gaps_;
};

}  // namespace troupe
