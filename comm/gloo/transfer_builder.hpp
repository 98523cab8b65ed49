/// The plan of one rank while it is made: how buffers are cut, and the steps added one by one.
#pragma once

#include "troupe/comm/gloo/transfer_plan.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace troupe {

/// Part of a buffer that belongs to one rank. In bytes.
struct Block {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

inline const Block& block_of(const std::vector<Block>& blocks, int rank) {
  return blocks[static_cast<std::size_t>(rank)];
}

class TransferBuilder {
 public:
  TransferBuilder(const TransferShape& shape, const TransferTuning& tuning);

  const TransferShape& shape() const { return shape_; }
  const TransferTuning& tuning() const { return tuning_; }
  int rank() const { return shape_.rank; }
  int size() const { return shape_.size; }
  /// Ranks so far to the right and to the left of this one, around the ring.
  int right(int distance = 1) const { return (rank() + distance) % size(); }
  int left(int distance = 1) const { return (rank() + size() - distance % size()) % size(); }

  // ---- how buffers are cut

  std::int64_t bytes_of(std::int64_t numel) const { return numel * shape_.element_bytes; }
  /// Of a buffer of size() · numel.
  std::vector<Block> equal_blocks() const;
  /// Of a buffer of numel, as even as the alignment allows; the last may be smaller, or empty.
  std::vector<Block> slices() const;
  const Block& own(const std::vector<Block>& blocks) const { return block_of(blocks, rank()); }

  /// Bytes of a message; the last of a block may have fewer.
  std::int64_t segment() const { return segment_; }
  std::int64_t segment_count(const Block& block) const {
    return (block.bytes + segment_ - 1) / segment_;
  }
  std::int64_t segment_bytes(const Block& block, std::int64_t index) const {
    return block.bytes - index * segment_ < segment_ ? block.bytes - index * segment_ : segment_;
  }
  std::int64_t segment_count_max(const std::vector<Block>& blocks) const;
  /// action(offset in the buffer, bytes) for each segment of a block.
  template <class Action>
  void for_segments(const Block& block, const Action& action) const {
    for (std::int64_t index = 0; index < segment_count(block); ++index) {
      action(block.offset + index * segment_, segment_bytes(block, index));
    }
  }

  /// Room in staging memory for `count` segments, or for some bytes; tells where it begins.
  std::int64_t stage(std::int64_t count) { return stage_bytes(count * segment_); }
  std::int64_t stage_bytes(std::int64_t bytes);
  Location staged(std::int64_t begin, std::int64_t index) const {
    return {Place::staging, begin + index * segment_};
  }

  // ---- steps

  void receive(Lane lane, int peer, Location to, std::int64_t bytes);
  void send(Lane lane, int peer, Location from, std::int64_t bytes);
  void await_receive(Lane lane, int peer);
  void await_send(Lane lane, int peer);
  void await_all_sends(Lane lane, int peer);
  void sum(Location to, std::span<const Location> sources, std::int64_t bytes);
  void copy_input(Location to, std::int64_t bytes);

  TransferPlan take() { return std::move(plan_); }

 private:
  int& sends_under_way(Lane lane, int peer);
  std::uint32_t add_sources(std::span<const Location> sources);

  const TransferShape shape_;
  const TransferTuning tuning_;
  const std::int64_t segment_;
  TransferPlan plan_;
  std::array<std::vector<int>, lane_count> sends_under_way_;
};

}  // namespace troupe
