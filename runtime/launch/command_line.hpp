/// What troupe-run is asked for on its command line. Pure.
#pragma once

#include "troupe/runtime/launch/job.hpp"

#include <span>
#include <string>
#include <variant>

namespace troupe::launch {

/// Why there is nothing to run: help was asked for (code 0), or the command line is wrong (code 2).
struct Refusal {
  int exit_code = 2;
  std::string text;  ///< the help, or one line
};

/// Reads the arguments that follow the program's name.
std::variant<JobOptions, Refusal> parse_command_line(std::span<const char* const> arguments);

}  // namespace troupe::launch
