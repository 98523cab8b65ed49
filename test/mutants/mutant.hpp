/// Faults that are put into copies of our sources when the tests are built (CMakeLists.txt), one of
/// which is chosen when the program starts. The sources themselves know nothing of them.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::test {

/// Whether the fault of this name is the chosen one; counts how often that was asked of it.
bool mutant(const char* name);

/// Before anything else runs; empty: none.
void choose_mutant(const std::string& name);
/// `executed` receives the count: memory that a crash leaves readable.
void count_executions_in(std::uint64_t* executed);

}  // namespace troupe::test
