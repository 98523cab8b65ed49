/// What every communicator checks about a collective: the call by itself, and the calls of all
/// ranks against each other. Pure.
#pragma once

#include "troupe/comm/communicator.hpp"

#include <optional>
#include <span>
#include <string>

namespace troupe {

/// "all_gather of bucket 3 'block.1' (ticket 17), 1024 fp32 elements": all that ranks must agree
/// on, so the texts of two calls that differ in it differ.
std::string describe_exactly(const CollectiveCall& call);

/// "rank 2", "ranks 0, 1 and 3"
std::string describe_ranks(std::span<const int> ranks);

/// What is wrong with `call` by itself (misuse), for the group's rank `rank` of `size`: a negative
/// size, a root outside the group, a missing buffer, an overlap that is not the one "in place" is.
std::optional<Failure> check_call(const CollectiveCall& call, int rank, int size);

/// The first disagreement (mismatch). The call of most ranks counts as expected; if two calls have
/// as many, that of the lowest rank. The failure names the lowest rank that differs.
/// calls, ranks  one per member of the group; `ranks` are world ranks
std::optional<Failure> compare_calls(std::span<const CollectiveCall> calls,
                                     std::span<const int> ranks);

}  // namespace troupe
