// Entry point of the programs that try the traps on a version with a fault; see
// cmake/TroupeMutants.cmake for what it prints and returns.
#include "traps.hpp"

#include <cstdint>
#include <cstdlib>
#include <iostream>

int main() {
  constexpr int found = 42;
  constexpr std::uint64_t seeds = 3;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    for (const troupe::test::Trap& trap : troupe::test::traps()) {
      if (const std::string wrong = trap.run(seed); !wrong.empty()) {
        std::cout << "violated: " << trap.name << ": " << wrong << " (seed " << seed << ")\n";
        std::cout.flush();
        std::_Exit(found);  // a broken version may not get through its destructors
      }
    }
  }
  std::cout << "no trap was sprung\n";
  return 0;
}
