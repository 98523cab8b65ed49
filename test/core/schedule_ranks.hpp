/// What [Note: the agreed order] is for: ranks whose trainers make the same calls, but use
/// different units, launch the same collectives in the same order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace troupe::testing {

/// How often the ranks differed, and in what.
struct RanksCoverage {
  std::uint64_t launches = 0;  ///< of rank 0, the trainer's own collectives too
  std::uint64_t own_collectives = 0;
  std::uint64_t uses_left_out = 0;
  std::uint64_t zero_reduces = 0;
  std::uint64_t accumulated = 0;    ///< micro-batches that did not reduce
  std::uint64_t kept_gathered = 0;  ///< frozen buckets, at step ends
  std::uint64_t orders_changed = 0;
  std::uint64_t uses_refused = 0;
};

/// A random program for a world of 1, 2, 3, 4 or 7 ranks, each with its own uses. In words where
/// their launches part, or nothing. There are gradient slots for all buckets: relief, which makes
/// ranks differ, is not tried.
std::optional<std::string> ranks_part(std::uint64_t seed, RanksCoverage& coverage);

}  // namespace troupe::testing
