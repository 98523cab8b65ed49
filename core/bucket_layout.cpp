#include "troupe/core/bucket_layout.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>

namespace troupe {

namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

BucketLayout::BucketLayout(std::span<const std::int64_t> numels,
                           int world_size,
                           std::int64_t alignment_numel)
    : world_size_(world_size) {
  assert(world_size >= 1 && alignment_numel >= 1);
  std::int64_t end = 0;
  const auto add_gap = [&](std::int64_t until) {
    if (until > end) {
      gaps_.push_back({end, until - end});
    }
  };
  parameters_.reserve(numels.size());
  for (const std::int64_t numel : numels) {
    assert(numel >= 0);
    const std::int64_t offset = round_up(end, alignment_numel);
    parameters_.push_back({offset, numel});
    // A parameter without elements covers nothing: the gap around it is one gap.
    if (numel > 0) {
      add_gap(offset);
      end = offset + numel;
    }
  }
  shard_numel_ = round_up(round_up(end, world_size) / world_size, alignment_numel);
  add_gap(numel_padded());
}

std::vector<ShardPiece> BucketLayout::pieces(int rank) const {
  const Range part = shard(rank);
  std::vector<ShardPiece> pieces;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const Range& parameter = parameters_[index];
    const std::int64_t begin = std::max(parameter.offset, part.offset);
    const std::int64_t end = std::min(parameter.offset + parameter.numel, part.offset + part.numel);
    if (begin < end) {
      pieces.push_back({.index = static_cast<std::uint32_t>(index),
                        .parameter_offset = begin - parameter.offset,
                        .shard_offset = begin - part.offset,
                        .numel = end - begin});
    }
  }
  return pieces;
}

}  // namespace troupe
