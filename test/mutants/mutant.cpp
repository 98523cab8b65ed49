#include "mutant.hpp"

namespace troupe::test {

namespace {

std::string& chosen() {
  static std::string name;
  return name;
}

std::uint64_t* executions = nullptr;

}  // namespace

bool mutant(const char* name) {
  if (chosen() != name) {
    return false;
  }
  if (executions != nullptr) {
    ++*executions;
  }
  return true;
}

void choose_mutant(const std::string& name) {
  chosen() = name;
}

void count_executions_in(std::uint64_t* executed) {
  executions = executed;
}

}  // namespace troupe::test
