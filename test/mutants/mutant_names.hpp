/// Generated from the list of mutants.
#pragma once

#include <string>
#include <vector>

namespace troupe::test {

/// Those that the model's suite has to find, and those that the traps have to.
std::vector<std::string> model_mutants();
std::vector<std::string> trap_mutants();

}  // namespace troupe::test
