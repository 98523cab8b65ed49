#include "schedule_property.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace troupe::testing {
namespace {

/// A number from the environment, or `otherwise`.
std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): one thread
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST_CASE("every property holds for random training programs") {
  // TROUPE_SEED=<n> runs one program only, TROUPE_SEQUENCES=<n> as many as that.
#ifdef NDEBUG
  constexpr std::uint64_t usual = 15'000;
#else
  constexpr std::uint64_t usual = 3'000;  // as long as 15,000 optimised ones
#endif
  constexpr std::uint64_t all = ~std::uint64_t{0};
  const std::uint64_t only = number_from("TROUPE_SEED", all);
  const std::uint64_t count = only == all ? number_from("TROUPE_SEQUENCES", usual) : 1;
  Coverage coverage;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t seed = only == all ? i : only;
    if (const auto property = violated_property(seed, coverage)) {
      FAIL("violated: ", *property, "; replay: TROUPE_SEED=", seed, " test_core_schedule_property");
    }
  }
  MESSAGE(coverage.events, " events, ", coverage.refused, " refused (", coverage.refused_for_slots,
          " for slots, ", coverage.refused_for_gradient_slots, " for gradient slots), ",
          coverage.ignored_ends, " ends ignored; ", coverage.prefetch_hits, " prefetch hits, ",
          coverage.misses, " misses, ", coverage.evictions, " evictions, ", coverage.evicted_unused,
          " buckets gathered for nothing, ", coverage.reduces, " reduces, ", coverage.regathers,
          " regathers, ", coverage.replica_sums, " sums over replicas, ", coverage.accumulated,
          " micro-batches without a reduce, ", coverage.left_reduces, " reduces at step ends");
  MESSAGE("agreed orders: refused ", coverage.refused_for_order, " for stale buckets, ",
          coverage.refused_as_reduced, " for reduced ones; ", coverage.zero_reduces,
          " reduces of zeros, ", coverage.out_of_turn, " out of turn, ", coverage.changed_when_kept,
          " kept buckets changed");
  if (only == all && count >= 1'000) {
    // The programs are worth something only if they do what the properties are about.
    CHECK(coverage.refused_for_slots > count / 100);
    CHECK(coverage.refused_for_gradient_slots > count / 100);
    CHECK(coverage.ignored_ends > count / 100);
    CHECK(coverage.prefetch_hits > 10 * count);
    CHECK(coverage.misses > 10 * count);
    CHECK(coverage.evicted_unused > count);
    CHECK(coverage.reduces > 10 * count);
    CHECK(coverage.regathers > count);
    CHECK(coverage.replica_sums > count);
    CHECK(coverage.accumulated > count / 10);
    CHECK(coverage.left_reduces > count / 10);
    CHECK(coverage.refused_for_order > count / 10);
    CHECK(coverage.refused_as_reduced > count / 100);
    CHECK(coverage.zero_reduces > count / 10);
    CHECK(coverage.out_of_turn > count / 100);
    CHECK(coverage.changed_when_kept > count / 10);
  }
}

}  // namespace
}  // namespace troupe::testing
