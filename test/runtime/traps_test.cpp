#include "traps.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

TEST_CASE("known faults of earlier designs are absent") {
  for (const Trap& trap : traps()) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const std::string wrong = trap.run(seed);
      CHECK_MESSAGE(wrong.empty(), trap.name, ": ", wrong, " (seed ", seed, ")");
    }
  }
}

}  // namespace
}  // namespace troupe::test
