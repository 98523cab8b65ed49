/// Random programs on random models under random strategies and variants equal the reference bit
/// for bit; also if ranks leave out units: at the same places under full_shard, where they say so,
/// anywhere under the others, where they say nothing.
///
/// Another range:  TROUPE_PROGRAM_SEEDS=<first>:<count>
#include "troupe/test/support/strategy_random.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace troupe::test {
namespace {

void check_seeds(bool divergent, unsigned long long count) {
  unsigned long long first = 1;
  if (const char* range = std::getenv("TROUPE_PROGRAM_SEEDS")) {
    REQUIRE(std::sscanf(range, "%llu:%llu", &first, &count) == 2);
  }
  std::array<int, strategies.size()> runs{};
  for (unsigned long long seed = first; seed < first + count; ++seed) {
    const ProgramRun run = random_strategy_run(seed, divergent);
    ++runs[static_cast<std::size_t>(run.options.strategy)];
    const std::string replay = "TROUPE_PROGRAM_SEEDS=" + std::to_string(seed) + ":1";
    const std::string complaints = complaints_of(run);
    CHECK_MESSAGE(complaints.empty(), replay, ", ", row_of(run.options.strategy).name, ", ",
                  run.ranks, " ranks:\n", complaints);
  }
  MESSAGE(runs[0], " owner_broadcast, ", runs[1], " sharded_optimizer, ", runs[2], " full_shard");
}

TEST_CASE("random programs under random strategies equal the reference and leave nothing over") {
  check_seeds(false, 300);
}

TEST_CASE("ranks that leave out units equal the reference in which they contribute zeros") {
  check_seeds(true, 300);
}

}  // namespace
}  // namespace troupe::test
