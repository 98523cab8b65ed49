// troupe-run: starts the ranks of a world on this host (docs/launching.md).
#include "troupe/runtime/launch/command_line.hpp"
#include "troupe/runtime/launch/job.hpp"

#include <exception>
#include <iostream>
#include <span>
#include <variant>

int main(int argc, char** argv) {
  using namespace troupe::launch;
  const std::span<const char* const> arguments(argv, static_cast<std::size_t>(argc));
  const auto parsed = parse_command_line(arguments.subspan(argc > 0 ? 1 : 0));
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) {
    (refusal->exit_code == 0 ? std::cout : std::cerr << "troupe-run: ")
        << refusal->text << (refusal->exit_code == 0 ? "" : "\n");
    return refusal->exit_code;
  }
  try {
    return run_job(std::get<JobOptions>(parsed));
  } catch (const std::exception& error) {
    std::cerr << "troupe-run: " << error.what() << "\n";
    return 1;
  }
}
