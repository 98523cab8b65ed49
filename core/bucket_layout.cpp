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
                           int group_size,
                           std::int64_t alignment_numel)
    : BucketLayout(numels, no_owner, group_size, alignment_numel) {}

BucketLayout BucketLayout::owned(std::span<const std::int64_t> numels,
                                 int owner,
                                 int group_size,
                                 std::int64_t alignment_numel) {
  assert(owner >= 0 && owner < group_size);
  return {numels, owner, group_size, alignment_numel};
}

BucketLayout::BucketLayout(std::span<const std::int64_t> numels,
                           int owner,
                           int group_size,
                           std::int64_t alignment_numel)
    : owner_(owner), group_size_(group_size) {
  assert(group_size >= 1 && alignment_numel >= 1);
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
  numel_padded_ =
      even() ? round_up(round_up(end, group_size) / group_size, alignment_numel) * group_size
             : round_up(end, alignment_numel);
  add_gap(numel_padded_);
}

std::int64_t BucketLayout::shard_numel() const {
  assert(even());
  return numel_padded_ / group_size_;
}

Range BucketLayout::shard(int member) const {
  assert(member >= 0 && member < group_size_);
  if (!even()) {
    return {0, member == owner_ ? numel_padded_ : 0};
  }
  return {shard_numel() * member, shard_numel()};
}

std::vector<ShardPiece> BucketLayout::pieces(int member) const {
  const Range part = shard(member);
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
