// What troupe-run makes of its command line.
#include "troupe/runtime/launch/command_line.hpp"

#include <doctest/doctest.h>

#include <string>
#include <variant>
#include <vector>

namespace troupe::launch {
namespace {

std::string said(const std::vector<const char*>& arguments) {
  const auto parsed = parse_command_line(arguments);
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) {
    return std::to_string(refusal->exit_code) + " " + refusal->text;
  }
  const auto& options = std::get<JobOptions>(parsed);
  std::string text = std::to_string(options.ranks) + " ranks, " +
                     std::to_string(options.settle.count()) + " and " +
                     std::to_string(options.grace.count()) + " ms:";
  for (const std::string& word : options.command) {
    text += " " + word;
  }
  return text;
}

TEST_CASE("options end at the program, or at --") {
  CHECK(said({"-n", "4", "--", "./gpt", "--steps", "3"}) ==
        "4 ranks, 3000 and 10000 ms: ./gpt --steps 3");
  CHECK(said({"-n", "1", "./gpt", "-n", "2"}) == "1 ranks, 3000 and 10000 ms: ./gpt -n 2");
  CHECK(said({"--grace", "0", "-n", "256", "--", "-x"}) == "256 ranks, 3000 and 0 ms: -x");
  CHECK(said({"--settle", "1", "-n", "2", "--", "-x"}) == "2 ranks, 1000 and 10000 ms: -x");
}

TEST_CASE("a wrong command line is refused in one line") {
  CHECK(said({}) == "2 -n does not say how many ranks (--help tells more)");
  CHECK(said({"./gpt"}) == "2 -n does not say how many ranks (--help tells more)");
  CHECK(said({"-n"}) == "2 -n stands without a number (--help tells more)");
  CHECK(said({"-n", "2"}) == "2 there is no program to run (--help tells more)");
  CHECK(said({"-n", "2", "--"}) == "2 there is no program to run (--help tells more)");
  for (const char* const wrong : {"0", "257", "-1", "x", "2x", ""}) {
    CHECK(said({"-n", wrong, "./gpt"}) == "2 -n is '" + std::string(wrong) +
                                              "'; expected a whole number from 1 to 256 (--help "
                                              "tells more)");
  }
  CHECK(said({"-n", "2", "--grace", "-1", "./gpt"}) ==
        "2 --grace is '-1'; expected a whole number from 0 to 86400 (--help tells more)");
  CHECK(said({"-np", "2", "./gpt"}) == "2 there is no option -np (--help tells more)");
  CHECK(said({"--help"}).starts_with("0 Usage: troupe-run -n RANKS"));
}

}  // namespace
}  // namespace troupe::launch
