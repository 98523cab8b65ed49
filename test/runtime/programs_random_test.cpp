/// Random programs on random models equal the reference bit for bit.
///
/// Another range:  TROUPE_PROGRAM_SEEDS=<first>:<count>
#include "troupe/test/support/program_random.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

namespace troupe::test {
namespace {

TEST_CASE("random programs on random models equal the reference and leave nothing over") {
  unsigned long long first = 1;
  unsigned long long count = 300;
  if (const char* range = std::getenv("TROUPE_PROGRAM_SEEDS")) {
    REQUIRE(std::sscanf(range, "%llu:%llu", &first, &count) == 2);
  }
  for (unsigned long long seed = first; seed < first + count; ++seed) {
    const ProgramRun run = random_run(seed);
    const std::string replay = "TROUPE_PROGRAM_SEEDS=" + std::to_string(seed) + ":1";
    const std::string complaints = complaints_of(run);
    CHECK_MESSAGE(complaints.empty(), replay, ", ", run.ranks, " ranks:\n", complaints);
  }
}

}  // namespace
}  // namespace troupe::test
