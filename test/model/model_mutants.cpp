// Tries the suite on versions with a fault; see README.md. Without arguments every fault has to be
// found, each within its share of seeds, and the version without one has to pass; with names,
// those. Exit: 0 if so, 1 if not.
#include "isolation.hpp"
#include "troupe/test/mutants/mutant.hpp"
#include "troupe/test/mutants/mutant_names.hpp"

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

namespace troupe::test {
namespace {

/// A fault that is not found within as many is not found.
constexpr std::uint64_t seeds_max = 3'000;
/// The version without a fault passes as many.
constexpr std::uint64_t seeds_without = 500;

bool found(const std::string& name) {
  choose_mutant(name);
  const RangeResult result = run_range(0, seeds_max);
  const Finding& finding = result.finding;
  if (!finding.found || result.mutant_executed == 0) {
    std::cout << "SURVIVED " << name << ": in " << result.runs << " schedules, executed "
              << result.mutant_executed << " times\n";
    return false;
  }
  std::cout << "found " << name << " by [" << finding.invariant << "] at seed " << finding.seed
            << " (executed " << result.mutant_executed
            << " times): " << finding.text.substr(0, finding.text.find('\n')) << "\n";
  return true;
}

int run(const std::vector<std::string>& given) {
  const std::vector<std::string> all = model_mutants();
  for (const std::string& name : given) {
    if (std::ranges::find(all, name) == all.end()) {
      std::cerr << "no mutant '" << name << "'; they are in test/mutants/CMakeLists.txt\n";
      return 2;
    }
  }
  bool passed = true;
  if (given.empty()) {
    const RangeResult without = run_range(0, seeds_without);
    passed = !without.finding.found;
    std::cout << (passed ? "silent" : "NOT SILENT: " + without.finding.invariant)
              << " without a fault, in " << without.runs << " schedules\n";
  }
  int survivors = 0;
  for (const std::string& name : given.empty() ? all : given) {
    survivors += found(name) ? 0 : 1;
  }
  std::cout << (given.empty() ? all.size() : given.size()) << " mutants, " << survivors
            << " survived\n";
  return passed && survivors == 0 ? 0 : 1;
}

}  // namespace
}  // namespace troupe::test

int main(int count, char** values) {
  return troupe::test::run({values + 1, values + count});
}
