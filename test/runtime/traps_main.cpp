// Tries the traps on versions with a fault: each has to be caught, to hang or to crash; without
// one nothing may be.
// Exit: 0 if so, 1 if not.
#include "traps.hpp"
#include "troupe/test/mutants/mutant.hpp"
#include "troupe/test/mutants/mutant_names.hpp"

#include <sys/wait.h>

#include <csignal>
#include <cstdint>
#include <iostream>
#include <string>
#include <unistd.h>

namespace troupe::test {
namespace {

constexpr int exit_caught = 42;
constexpr std::uint64_t seeds = 3;
constexpr unsigned seconds_max = 60;

/// In a child process: a version with a fault may hang or end in pieces. Empty: no fault.
int spring(const std::string& mutant) {
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    alarm(seconds_max);
    choose_mutant(mutant);
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      for (const Trap& trap : traps()) {
        if (const std::string wrong = trap.run(seed); !wrong.empty()) {
          std::cout << (mutant.empty() ? "CAUGHT, without a fault" : "caught " + mutant) << " by ["
                    << trap.name << "]: " << wrong << " (seed " << seed << ")" << std::endl;
          _exit(exit_caught);
        }
      }
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int run() {
  int wrong = spring("") == 0 ? 0 : 1;
  for (const std::string& mutant : trap_mutants()) {
    const int status = spring(mutant);
    if (status == -SIGALRM) {
      std::cout << "caught " << mutant << " by a hang\n";  // without a fault nothing hangs
    } else if (status < 0) {
      std::cout << "caught " << mutant << " by a crash (signal " << -status << ")\n";  // nor this
    } else if (status != exit_caught) {
      std::cout << "NOT CAUGHT: " << mutant << " (status " << status << ")\n";
      ++wrong;
    }
  }
  std::cout << trap_mutants().size() << " mutants, " << wrong << " wrong\n";
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace troupe::test

int main() {
  return troupe::test::run();
}
