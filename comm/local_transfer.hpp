/// How a collective moves its payload between ranks that see each other's buffers. Pure functions
/// on memory: who may read when is the business of `LocalGroup`.
#pragma once

#include "troupe/comm/communicator.hpp"

#include <cstdint>
#include <span>

namespace troupe {

/// Rounds of a collective: nobody begins the second before all have finished the first.
enum class TransferRound : std::uint8_t { first, second };

/// All-reduce sums a slice per rank, then gathers the slices.
constexpr bool has_second_round(Collective op) {
  return op == Collective::all_reduce;
}

/// Bytes that the ranks of a group of `size` read together in all rounds.
std::int64_t bytes_read(const CollectiveCall& call, int size);

/// What `rank` does in a round. It writes its own output only; in a `reduce`, its slice of the
/// root's. No rank writes what another one reads or writes in the same round, in place or not.
/// calls  of all members of the group, which agree
/// Want of memory for a pointer per rank ends the process: peers would wait for a reader that is
/// gone.
void transfer(std::span<const CollectiveCall> calls, int rank, TransferRound round) noexcept;

}  // namespace troupe
