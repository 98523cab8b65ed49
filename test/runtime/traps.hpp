/// Known faults of earlier designs of this kind, each as a small training run that comes out wrong
/// if the fault is there. Used twice: as tests, and against versions with the fault put in
/// (trap_mutants.cmake).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::test {

/// What a trap looks at, and a run of it: empty if all is right, else what is wrong.
struct Trap {
  std::string_view name;
  std::string (*run)(std::uint64_t seed);
};

const std::vector<Trap>& traps();

}  // namespace troupe::test
