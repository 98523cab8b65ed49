/// What each rank of a group sends, receives and sums in a collective over connections, in order.
/// Pure: the plans of all ranks together are tested without a connection.
///
/// [Note: how collectives move] W ranks, each buffer cut in blocks, each block in segments:
///
///     all_gather      a ring: each rank passes on to its right what comes from its left,
///                     segment by segment; (W - 1) blocks in and out
///     reduce_scatter  in rank order: each rank receives its own block from every other rank and
///                     sums; ring: partial sums go around, each rank adds its own;
///                     either way (W - 1) blocks in and out
///     all_reduce      a reduce_scatter of slices, then an all_gather of the sums
///     reduce          a reduce_scatter of slices, whose sums go to the root
///     broadcast       a chain from the root, segment by segment
///     barrier         in round k each rank tells the one 2^k to its right
///
/// [Note: receives before sends] Gloo moves a message only when the receiver has made ready for it
/// and has told the sender so. So receives are posted as early as memory allows: at once where they
/// go to where the data belongs; parts to be summed go to staging memory, a few segments of each
/// peer, and no more sends are under way than half of that, so that word of a free place does not
/// queue behind more payload than the places hold.
///
/// The messages of one rank to another on one lane arrive in the order sent; number k that is sent
/// meets number k that is received.
#pragma once

#include "troupe/core/strategy.hpp"

#include <cstdint>
#include <vector>

namespace troupe {

/// In which order contributions are added.
enum class SumOrder : std::uint8_t {
  /// ((r0 + r1) + r2) + …, in fp32, bf16 rounded once: bit for bit like ranks of one process.
  ranks,
  /// Each block begins at another rank, and its partial sums travel in the buffer's dtype: bf16 is
  /// rounded at every rank. The same on all ranks and in every run, but no longer what one process
  /// computes. A rank talks to its neighbours only.
  ring,
};

struct TransferTuning {
  SumOrder sum_order = SumOrder::ranks;
  /// Of one message at most.
  std::int64_t segment_bytes = std::int64_t{512} << 10;
  /// For parts that wait to be summed. With many ranks segments are cut smaller to keep to it, down
  /// to `segment_bytes_min`.
  std::int64_t staging_bytes = std::int64_t{16} << 20;

  static constexpr std::int64_t segment_bytes_min = std::int64_t{16} << 10;
  bool operator==(const TransferTuning&) const = default;
};

struct TransferShape {
  Collective op = Collective::barrier;
  int rank = 0;  ///< within the group
  int size = 1;
  std::int64_t numel = 0;  ///< as in CollectiveCall
  std::int64_t element_bytes = 4;
  int root = 0;
};

enum class Place : std::uint8_t { input, output, staging };

struct Location {
  Place place = Place::input;
  std::int64_t offset = 0;  ///< in bytes

  bool operator==(const Location&) const = default;
};

/// Messages between two ranks that keep their order among themselves.
enum class Lane : std::uint8_t { parts, results };
inline constexpr int lane_count = 2;

struct Transfer {
  enum class Kind : std::uint8_t {
    receive,        ///< makes ready to receive `bytes` from `peer` at `at`
    send,           ///< begins to send `bytes` at `at` to `peer`
    await_receive,  ///< until the earliest receive from `peer` that was not awaited yet is done
    await_send,     ///< the same of sends: what was sent may be written again
    sum,            ///< at = sources added in their order, `bytes` of each
    copy,           ///< at = the one source
  };
  Kind kind = Kind::copy;
  Lane lane = Lane::parts;
  int peer = 0;
  Location at{};
  std::int64_t bytes = 0;
  std::uint32_t first_source = 0;  ///< in TransferPlan::sources
  std::uint32_t source_count = 0;
};

struct TransferPlan {
  std::vector<Transfer> steps;
  std::vector<Location> sources;
  std::int64_t staging_bytes = 0;
};

TransferPlan plan_transfer(const TransferShape& shape, const TransferTuning& tuning);

}  // namespace troupe
