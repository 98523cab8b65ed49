#include "troupe/comm/gloo/transfer_builder.hpp"

#include <algorithm>
#include <cstddef>

namespace troupe {

namespace {

/// Places in staging memory begin at multiples of this, for the sums' sake.
constexpr std::int64_t place_alignment = 64;

/// Slices of a buffer begin at multiples of so many elements.
constexpr std::int64_t slice_alignment = 32;

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Bytes of one message, so that staging holds two of each of the `peers` that one receives from.
std::int64_t segment_for(const TransferTuning& tuning, int peers) {
  const std::int64_t fitting = tuning.staging_bytes / (std::int64_t{2} * std::max(1, peers));
  const std::int64_t wanted =
      std::min(tuning.segment_bytes, std::max(fitting, TransferTuning::segment_bytes_min));
  return std::max(place_alignment, wanted / place_alignment * place_alignment);
}

}  // namespace

TransferBuilder::TransferBuilder(const TransferShape& shape, const TransferTuning& tuning)
    : shape_(shape),
      tuning_(tuning),
      segment_(segment_for(tuning, tuning.sum_order == SumOrder::ranks ? shape.size - 1 : 1)) {
  for (auto& of_lane : sends_under_way_) {
    of_lane.resize(static_cast<std::size_t>(shape.size));
  }
}

// ---- how buffers are cut ------------------------------------------------------------------------

std::vector<Block> TransferBuilder::equal_blocks() const {
  std::vector<Block> blocks;
  blocks.reserve(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) {
    blocks.push_back({rank * bytes_of(shape_.numel), bytes_of(shape_.numel)});
  }
  return blocks;
}

std::vector<Block> TransferBuilder::slices() const {
  const std::int64_t each = round_up((shape_.numel + size() - 1) / size(), slice_alignment);
  std::vector<Block> blocks;
  blocks.reserve(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) {
    const std::int64_t begin = std::min(shape_.numel, rank * each);
    blocks.push_back({bytes_of(begin), bytes_of(std::min(shape_.numel - begin, each))});
  }
  return blocks;
}

std::int64_t TransferBuilder::segment_count_max(const std::vector<Block>& blocks) const {
  std::int64_t count = 0;
  for (const Block& block : blocks) {
    count = std::max(count, segment_count(block));
  }
  return count;
}

std::int64_t TransferBuilder::stage_bytes(std::int64_t bytes) {
  const std::int64_t begin = plan_.staging_bytes;
  plan_.staging_bytes += bytes;
  return begin;
}

// ---- steps --------------------------------------------------------------------------------------

void TransferBuilder::receive(Lane lane, int peer, Location to, std::int64_t bytes) {
  plan_.steps.push_back(
      {.kind = Transfer::Kind::receive, .lane = lane, .peer = peer, .at = to, .bytes = bytes});
}

void TransferBuilder::send(Lane lane, int peer, Location from, std::int64_t bytes) {
  plan_.steps.push_back(
      {.kind = Transfer::Kind::send, .lane = lane, .peer = peer, .at = from, .bytes = bytes});
  ++sends_under_way(lane, peer);
}

void TransferBuilder::await_receive(Lane lane, int peer) {
  plan_.steps.push_back({.kind = Transfer::Kind::await_receive, .lane = lane, .peer = peer});
}

void TransferBuilder::await_send(Lane lane, int peer) {
  plan_.steps.push_back({.kind = Transfer::Kind::await_send, .lane = lane, .peer = peer});
  --sends_under_way(lane, peer);
}

void TransferBuilder::await_all_sends(Lane lane, int peer) {
  while (sends_under_way(lane, peer) > 0) {
    await_send(lane, peer);
  }
}

void TransferBuilder::sum(Location to, std::span<const Location> sources, std::int64_t bytes) {
  plan_.steps.push_back({.kind = Transfer::Kind::sum,
                         .at = to,
                         .bytes = bytes,
                         .first_source = add_sources(sources),
                         .source_count = static_cast<std::uint32_t>(sources.size())});
}

void TransferBuilder::copy_input(Location to, std::int64_t bytes) {
  const Location input{Place::input, 0};
  plan_.steps.push_back({.kind = Transfer::Kind::copy,
                         .at = to,
                         .bytes = bytes,
                         .first_source = add_sources({&input, 1}),
                         .source_count = 1});
}

int& TransferBuilder::sends_under_way(Lane lane, int peer) {
  return sends_under_way_[static_cast<std::size_t>(lane)][static_cast<std::size_t>(peer)];
}

std::uint32_t TransferBuilder::add_sources(std::span<const Location> sources) {
  const auto first = static_cast<std::uint32_t>(plan_.sources.size());
  plan_.sources.insert(plan_.sources.end(), sources.begin(), sources.end());
  return first;
}

}  // namespace troupe
