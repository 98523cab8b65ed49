/// Generated from mutants.cmake.
#pragma once

#include <string>
#include <vector>

namespace troupe::test {

std::vector<std::string> mutant_names();

}  // namespace troupe::test
