/// What the ranks say to each other when they meet to give up a step, and what follows from it.
/// Pure: every rank comes to the same verdict.
#pragma once

#include "troupe/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// Of one runtime on one rank.
struct RuntimeStatement {
  std::uint64_t updates = 0;   ///< of the bucket that was updated most often
  std::uint64_t versions = 0;  ///< hash of the plan and of the versions of all buckets
  std::uint64_t steps = 0;     ///< finished, without one that is given up
  bool saves = false;          ///< an asynchronous save is not finished
  bool operator==(const RuntimeStatement&) const = default;
};

struct RankStatement {
  /// Why this rank cannot go on ("work on stream 'compute' did not end"); empty: it can.
  std::string refusal;
  std::vector<RuntimeStatement> runtimes;
  bool operator==(const RankStatement&) const = default;
};

std::string encode(const RankStatement& statement);
/// Of what `encode` has made.
RankStatement decode(const std::string& word);

/// Why the ranks cannot go on together, if they cannot. statements  by rank
std::optional<Failure> verdict(std::span<const RankStatement> statements);
/// Steps that the `index`-th runtime has finished, on every rank from now on: a rank that has not
/// begun the step given up may not count the one before it, if no update has followed that.
std::uint64_t common_steps(std::span<const RankStatement> statements, std::size_t index);
/// Whether its asynchronous save goes on: not if some rank has begun to finish it.
bool all_save(std::span<const RankStatement> statements, std::size_t index);

}  // namespace troupe
