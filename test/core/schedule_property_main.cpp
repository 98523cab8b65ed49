// Entry point of the programs that try the properties on a mutated schedule; see
// cmake/TroupeMutants.cmake for what it prints and returns.
#include "schedule_property.hpp"
#include "schedule_ranks.hpp"

#include <cstdint>
#include <iostream>

int main() {
  constexpr int found = 42;
  constexpr std::uint64_t sequences = 1'500;
  troupe::testing::Coverage coverage;
  troupe::testing::RanksCoverage ranks;
  for (std::uint64_t seed = 0; seed < sequences; ++seed) {
    if (const auto property = troupe::testing::violated_property(seed, coverage)) {
      std::cout << "violated: " << *property << " (seed " << seed << ")\n";
      return found;
    }
    if (const auto parted = troupe::testing::ranks_part(seed, ranks)) {
      std::cout << "violated: " << *parted << " (seed " << seed << ")\n";
      return found;
    }
  }
  std::cout << "no property is violated by seeds 0 to " << sequences - 1 << '\n';
  return 0;
}
