#include "troupe/core/bucket_layout.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace troupe {
namespace {

BucketLayout layout(std::vector<std::int64_t> numels, int world_size, std::int64_t alignment = 1) {
  return {numels, world_size, alignment};
}

/// Elements of parameters in the shard of each rank.
std::vector<std::int64_t> numel_per_rank(const BucketLayout& layout) {
  std::vector<std::int64_t> numels;
  for (int rank = 0; rank < layout.group_size(); ++rank) {
    std::int64_t numel = 0;
    for (const ShardPiece& piece : layout.pieces(rank)) {
      numel += piece.numel;
    }
    numels.push_back(numel);
  }
  return numels;
}

std::int64_t gap_numel(const BucketLayout& layout) {
  std::int64_t numel = 0;
  for (const Range& gap : layout.gaps()) {
    numel += gap.numel;
  }
  return numel;
}

TEST_CASE("the layout drawn in bucket_layout.hpp") {
  const BucketLayout drawn = layout({5, 4, 3}, 2, 4);
  CHECK(drawn.numel_padded() == 16);
  CHECK(drawn.shard_numel() == 8);
  CHECK(drawn.parameters() == std::vector<Range>{{0, 5}, {8, 4}, {12, 3}});
  CHECK(drawn.gaps() == std::vector<Range>{{5, 3}, {15, 1}});
  CHECK(drawn.shard(0) == Range{0, 8});
  CHECK(drawn.shard(1) == Range{8, 8});
  CHECK(drawn.pieces(0) == std::vector<ShardPiece>{{0, 0, 0, 5}});
  CHECK(drawn.pieces(1) == std::vector<ShardPiece>{{1, 0, 0, 4}, {2, 0, 4, 3}});
}

TEST_CASE("the even and the owned layout drawn beside each other in bucket_layout.hpp") {
  const BucketLayout even = layout({5}, 2, 4);
  CHECK(even.even());
  CHECK(even.numel_padded() == 8);
  CHECK(even.pieces(0) == std::vector<ShardPiece>{{0, 0, 0, 4}});
  CHECK(even.pieces(1) == std::vector<ShardPiece>{{0, 4, 0, 1}});

  const BucketLayout owned = BucketLayout::owned(std::vector<std::int64_t>{5}, 1, 2, 4);
  CHECK_FALSE(owned.even());
  CHECK(owned.numel_padded() == 8);
  CHECK(owned.gaps() == std::vector<Range>{{5, 3}});
  CHECK(owned.shard(0) == Range{0, 0});
  CHECK(owned.shard(1) == Range{0, 8});
  CHECK(owned.pieces(0).empty());
  CHECK(owned.pieces(1) == std::vector<ShardPiece>{{0, 0, 0, 5}});
}

TEST_CASE("an owned layout is padded to the alignment, not to the group") {
  const std::vector<std::int64_t> numels{5, 4, 0, 3};
  for (const int group_size : {1, 2, 3, 4, 7}) {
    for (int owner = 0; owner < group_size; ++owner) {
      CAPTURE(group_size);
      CAPTURE(owner);
      const BucketLayout owned = BucketLayout::owned(numels, owner, group_size, 4);
      CHECK(owned.group_size() == group_size);
      CHECK(owned.numel_padded() == 16);
      CHECK(owned.parameters() == std::vector<Range>{{0, 5}, {8, 4}, {12, 0}, {12, 3}});
      for (int member = 0; member < group_size; ++member) {
        CHECK(owned.shard(member) == (member == owner ? Range{0, 16} : Range{0, 0}));
      }
    }
  }
  CHECK(BucketLayout::owned(numels, 2, 7, 1).numel_padded() == 12);
  CHECK(layout(numels, 7, 1).numel_padded() == 14);
  CHECK(BucketLayout::owned({}, 0, 2, 4).numel_padded() == 0);
}

TEST_CASE("a parameter that lies across shards has a piece in each") {
  const BucketLayout across = layout({2, 7, 1}, 4);
  CHECK(across.shard_numel() == 3);
  CHECK(across.pieces(0) == std::vector<ShardPiece>{{0, 0, 0, 2}, {1, 0, 2, 1}});
  CHECK(across.pieces(1) == std::vector<ShardPiece>{{1, 1, 0, 3}});
  CHECK(across.pieces(2) == std::vector<ShardPiece>{{1, 4, 0, 3}});
  CHECK(across.pieces(3) == std::vector<ShardPiece>{{2, 0, 0, 1}});
  CHECK(across.gaps() == std::vector<Range>{{10, 2}});
}

TEST_CASE("S33: ranks whose shard is empty hold no piece") {
  // W=4, one bucket each for parameters of 2, 1, 0 and 5 elements, no extra alignment.
  using Numels = std::vector<std::int64_t>;
  CHECK(numel_per_rank(layout({2}, 4)) == Numels{1, 1, 0, 0});
  CHECK(numel_per_rank(layout({1}, 4)) == Numels{1, 0, 0, 0});
  CHECK(numel_per_rank(layout({0}, 4)) == Numels{0, 0, 0, 0});
  CHECK(numel_per_rank(layout({5}, 4)) == Numels{2, 2, 1, 0});
  CHECK(layout({0}, 4).shard_numel() == 0);
  CHECK(layout({0}, 4).numel_padded() == 0);
  CHECK(layout({0}, 4).gaps().empty());
  CHECK(layout({5}, 4).pieces(3).empty());
  CHECK(layout({5}, 4).shard(3) == Range{6, 2});
}

TEST_CASE("S34: a bucket is padded to the world size, and the padding is a gap") {
  struct Row {
    std::int64_t numel;
    int world_size;
    std::int64_t shard_numel;
    std::int64_t pad_numel;
  };
  // clang-format off
  constexpr Row rows[] = {
      {1000, 3, 334, 2}, {1000, 4, 250, 0}, {1000, 7, 143, 1},
      {1001, 3, 334, 1}, {1001, 4, 251, 3}, {1001, 7, 143, 0},
      {1003, 3, 335, 2}, {1003, 4, 251, 1}, {1003, 7, 144, 5},
      {   7, 3,   3, 2}, {   7, 4,   2, 1}, {   7, 7,   1, 0},
  };
  // clang-format on
  for (const Row& row : rows) {
    CAPTURE(row.numel);
    CAPTURE(row.world_size);
    const BucketLayout padded = layout({row.numel}, row.world_size);
    CHECK(padded.shard_numel() == row.shard_numel);
    CHECK(gap_numel(padded) == row.pad_numel);
    CHECK(padded.numel_padded() == row.numel + row.pad_numel);
  }
}

TEST_CASE("a parameter without elements takes no room and has no piece") {
  const BucketLayout with_empty = layout({3, 0, 2}, 1, 4);
  CHECK(with_empty.parameters() == std::vector<Range>{{0, 3}, {4, 0}, {4, 2}});
  CHECK(with_empty.gaps() == std::vector<Range>{{3, 1}, {6, 2}});
  CHECK(with_empty.pieces(0) == std::vector<ShardPiece>{{0, 0, 0, 3}, {2, 0, 4, 2}});

  // The gap around an empty parameter is one gap.
  CHECK(layout({3, 0}, 2, 4).gaps() == std::vector<Range>{{3, 5}});
  CHECK(layout({}, 3, 4).numel_padded() == 0);
}

void check_covered_once(const BucketLayout& checked) {
  std::vector<int> covered(static_cast<std::size_t>(checked.numel_padded()));
  const auto cover = [&](std::int64_t offset, std::int64_t numel) {
    for (std::int64_t i = offset; i < offset + numel; ++i) {
      ++covered[static_cast<std::size_t>(i)];
    }
  };
  for (const Range& gap : checked.gaps()) {
    CHECK(gap.numel > 0);
    cover(gap.offset, gap.numel);
  }
  for (int member = 0; member < checked.group_size(); ++member) {
    const Range shard = checked.shard(member);
    for (const ShardPiece& piece : checked.pieces(member)) {
      CHECK(piece.numel > 0);
      CHECK(checked.parameters()[piece.index].offset + piece.parameter_offset ==
            shard.offset + piece.shard_offset);
      cover(shard.offset + piece.shard_offset, piece.numel);
    }
  }
  CHECK(covered == std::vector<int>(covered.size(), 1));
  for (std::size_t i = 1; i < checked.gaps().size(); ++i) {
    CHECK(checked.gaps()[i - 1].offset + checked.gaps()[i - 1].numel < checked.gaps()[i].offset);
  }
}

TEST_CASE("pieces and gaps cover every element of the full buffer exactly once") {
  const std::vector<std::vector<std::int64_t>> shapes{
      {5, 4, 3}, {1}, {0, 1, 0, 17}, {64, 64}, {9, 1, 1, 1}};
  for (const auto& numels : shapes) {
    for (const int group_size : {1, 2, 3, 4, 7}) {
      for (const std::int64_t alignment : {1, 2, 4, 128}) {
        CAPTURE(group_size);
        CAPTURE(alignment);
        const BucketLayout even = layout(numels, group_size, alignment);
        check_covered_once(even);
        CHECK(even.shard_numel() % alignment == 0);
        const BucketLayout owned =
            BucketLayout::owned(numels, group_size / 2, group_size, alignment);
        check_covered_once(owned);
        CHECK(owned.numel_padded() % alignment == 0);
        CHECK(owned.numel_padded() <= even.numel_padded());
        CHECK(owned.parameters() == even.parameters());
        for (const Range& parameter : even.parameters()) {
          CHECK(parameter.offset % alignment == 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe
