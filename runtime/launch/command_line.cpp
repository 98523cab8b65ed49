#include "troupe/runtime/launch/command_line.hpp"

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace troupe::launch {

namespace {

constexpr int ranks_max = 256;
constexpr int grace_seconds_max = 24 * 60 * 60;

constexpr std::string_view help =
    "Usage: troupe-run -n RANKS [--settle SECONDS] [--grace SECONDS] [--] PROGRAM [ARGUMENT...]\n"
    "\n"
    "Runs PROGRAM RANKS times on this host, as the ranks of one world, and tells each which rank "
    "it\n"
    "is and how to find the others (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,\n"
    "MASTER_PORT, TROUPE_SECRET). Each line that a rank writes comes out behind \"[rank] \". "
    "Their\n"
    "input is empty. SIGINT, SIGTERM and SIGHUP are passed on to all.\n"
    "\n"
    "  -n RANKS         from 1 to 256\n"
    "  --settle SECONDS when a rank fails, the others have so long to end by themselves, and to "
    "say\n"
    "                   why (3)\n"
    "  --grace SECONDS  then they are sent SIGTERM, and SIGKILL so much later (10)\n"
    "  --help           this\n"
    "\n"
    "Exit code: 0 if that of all ranks is, else that of the first one that failed, or 128 + the\n"
    "signal that ended it; 127 if there is no PROGRAM, 126 if it cannot be run, 2 for a wrong "
    "option.\n";

std::optional<int> number(std::string_view text, int min, int max) {
  int value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && rest == text.data() + text.size();
  return whole && value >= min && value <= max ? std::optional(value) : std::nullopt;
}

Refusal refusal(std::string_view line) {
  return {2, std::string(line) + " (--help tells more)"};
}

}  // namespace

std::variant<JobOptions, Refusal> parse_command_line(std::span<const char* const> arguments) {
  JobOptions options;
  std::optional<int> ranks;
  std::size_t next = 0;
  while (next < arguments.size() && *arguments[next] == '-') {
    const std::string_view option = arguments[next++];
    if (option == "--") {
      break;
    }
    if (option == "--help" || option == "-h") {
      return Refusal{0, std::string(help)};
    }
    if (option != "-n" && option != "--settle" && option != "--grace") {
      return refusal("there is no option " + std::string(option));
    }
    if (next == arguments.size()) {
      return refusal(std::string(option) + " stands without a number");
    }
    const std::string_view value = arguments[next++];
    const int max = option == "-n" ? ranks_max : grace_seconds_max;
    const int min = option == "-n" ? 1 : 0;
    const auto given = number(value, min, max);
    if (!given) {
      return refusal(std::string(option) + " is '" + std::string(value) +
                     "'; expected a whole number from " + std::to_string(min) + " to " +
                     std::to_string(max));
    }
    if (option == "-n") {
      ranks = given;
    } else if (option == "--settle") {
      options.settle = std::chrono::seconds{*given};
    } else {
      options.grace = std::chrono::seconds{*given};
    }
  }
  if (!ranks) {
    return refusal("-n does not say how many ranks");
  }
  if (next == arguments.size()) {
    return refusal("there is no program to run");
  }
  options.ranks = *ranks;
  options.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(next), arguments.end());
  return options;
}

}  // namespace troupe::launch
