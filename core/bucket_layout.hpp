/// Where each parameter of a bucket lies, unsharded and on each member of its process group. Pure.
///
/// Three parameters of 5, 4 and 3 elements, group size 2, alignment 4 elements:
///
///     element   0         4         8         12        16
///     full      |a a a a a . . .|b b b b|c c c .|          numel_padded 16
///     shards    |--- member 0 --|--- member 1 --|          shard_numel   8
///
/// Every parameter starts at a multiple of the alignment; the end is padded so that all members
/// hold shards of one size, itself a multiple of the alignment (in-place collectives stay aligned).
/// The last of them without b and c, even, and owned by member 1 (as `owner_broadcast` keeps them):
///
///     even      |a a a a a . . .|          owned     |a a a a a . . .|
///     shards    |member0|member1|          shards    |--- member 1 --|    member 0: empty
///
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

/// A part of one parameter that lies in one member's shard.
struct ShardPiece {
  std::uint32_t index = 0;            ///< of the parameter within its bucket
  std::int64_t parameter_offset = 0;  ///< of the piece within the parameter
  std::int64_t shard_offset = 0;      ///< of the piece within the shard
  std::int64_t numel = 0;             ///< > 0
  bool operator==(const ShardPiece&) const = default;
};

class BucketLayout {
 public:
  /// Even shards.
  /// numels           elements of each parameter; 0 is allowed
  /// group_size       ≥ 1, members of the process group
  /// alignment_numel  ≥ 1
  BucketLayout(std::span<const std::int64_t> numels, int group_size, std::int64_t alignment_numel);
  /// All of it, padded to the alignment, is the shard of member `owner`; the others' are empty.
  static BucketLayout owned(std::span<const std::int64_t> numels,
                            int owner,
                            int group_size,
                            std::int64_t alignment_numel);

  int group_size() const { return group_size_; }
  /// Whether all shards have one size; else one member owns everything.
  bool even() const { return owner_ == no_owner; }
  std::int64_t numel_padded() const { return numel_padded_; }
  /// Of every member. Precondition: `even()`; else ask `shard`.
  std::int64_t shard_numel() const;
  /// Where a parameter lies in the full buffer.
  const std::vector<Range>& parameters() const { return parameters_; }
  /// The slice of the full buffer that `member` keeps; {0, 0} if it is none.
  Range shard(int member) const;
  /// The pieces of parameters in the shard of `member`, in order; empty for an empty shard.
  std::vector<ShardPiece> pieces(int member) const;
  /// Ranges of the full buffer that belong to no parameter, in order; neighbours merged.
  const std::vector<Range>& gaps() const { return gaps_; }

 private:
  static constexpr int no_owner = -1;

  BucketLayout(std::span<const std::int64_t> numels,
               int owner,
               int group_size,
               std::int64_t alignment_numel);

  int owner_;
  int group_size_;
  std::int64_t numel_padded_ = 0;
  std::vector<Range> parameters_;
  std::vector<Range> gaps_;
};

}  // namespace troupe
