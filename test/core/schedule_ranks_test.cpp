#include "schedule_ranks.hpp"

#include <doctest/doctest.h>

#include <cstdint>

namespace troupe::testing {
namespace {

TEST_CASE("ranks that use different units launch the same collectives in the same order") {
#ifdef NDEBUG
  constexpr std::uint64_t programs = 10'000;
#else
  constexpr std::uint64_t programs = 5'000;
#endif
  RanksCoverage coverage;
  for (std::uint64_t seed = 0; seed < programs; ++seed) {
    if (const auto parted = ranks_part(seed, coverage)) {
      FAIL("violated: ", *parted, " (seed ", seed, ")");
    }
  }
  MESSAGE(coverage.launches, " launches of rank 0, ", coverage.own_collectives,
          " collectives of the trainer, ", coverage.uses_left_out, " uses left out, ",
          coverage.uses_refused, " refused, ", coverage.zero_reduces, " reduces of zeros, ",
          coverage.accumulated, " micro-batches without a reduce, ", coverage.kept_gathered,
          " frozen buckets kept, ", coverage.orders_changed, " orders changed");
  CHECK(coverage.launches > 50 * programs);
  CHECK(coverage.own_collectives > programs);
  CHECK(coverage.uses_left_out > programs);
  CHECK(coverage.zero_reduces > programs);
  CHECK(coverage.accumulated > programs / 10);
  CHECK(coverage.kept_gathered > programs / 2);
  CHECK(coverage.orders_changed > programs / 2);
}

}  // namespace
}  // namespace troupe::testing
