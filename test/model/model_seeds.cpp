// Runs worlds of many seeds; see README.md. Exit: 0 nothing found, 1 a violation, 2 bad usage.
#include "isolation.hpp"
#include "shrink.hpp"

#include <charconv>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string_view>

namespace troupe::test {
namespace {

constexpr std::uint64_t seeds_default = 20'000;
constexpr std::uint64_t seeds_per_process = 500;
constexpr std::uint64_t seeds_end_max = std::uint64_t{1} << 63U;
constexpr int shrink_attempts = 400;

struct Arguments {
  std::uint64_t first = 0;
  std::uint64_t seeds = seeds_default;
  std::optional<RunPlan> replay;
};

int usage() {
  std::cerr << "Usage: model_seeds [--seeds N] [--first SEED] | --replay SEED[:CHOICES]\n";
  return 2;
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty()
             ? std::optional(value)
             : std::nullopt;
}

std::optional<Arguments> parse(int count, char** values) {
  Arguments arguments;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view name = values[i];
    const std::string value = values[i + 1];
    if (name == "--seeds" || name == "--first") {
      const auto parsed = number(value);
      if (!parsed) {
        return std::nullopt;
      }
      (name == "--seeds" ? arguments.seeds : arguments.first) = *parsed;
    } else if (name == "--replay") {
      const std::size_t colon = value.find(':');
      const auto seed = number(std::string_view(value).substr(0, colon));
      RunPlan plan;
      plan.replay = colon != std::string::npos;
      const auto choices = from_text(plan.replay ? value.substr(colon + 1) : "");
      if (!seed || !choices) {
        return std::nullopt;
      }
      plan.seed = *seed;
      plan.choices = *choices;
      arguments.replay = plan;
    } else {
      return std::nullopt;
    }
  }
  // Running nothing would look like finding nothing.
  const bool some = arguments.seeds > 0 && arguments.seeds <= seeds_end_max &&
                    arguments.first <= seeds_end_max - arguments.seeds;
  return count % 2 == 1 && some ? std::optional(arguments) : std::nullopt;
}

void print(const Finding& finding, const Choices& choices) {
  std::cout << "violated: " << finding.invariant << " (seed " << finding.seed << ")\n"
            << "  " << finding.text << "\n"
            << "  world: " << random_world(finding.seed).text() << "\n"
            << "  step " << finding.step << "; the last things that happened:\n"
            << finding.history << "  replay: ./dev test --replay " << finding.seed << ":"
            << to_text(choices) << "\n";
}

/// Looks for a shorter schedule that violates the same.
void report(const Finding& finding) {
  const auto still_fails = [&](const Choices& choices) {
    const Finding again =
        run_one({.seed = finding.seed, .replay = true, .choices = choices}).finding;
    return again.found && again.invariant == finding.invariant;
  };
  const Choices shorter = shrink(finding.choices, still_fails, shrink_attempts);
  const Finding last = run_one({.seed = finding.seed, .replay = true, .choices = shorter}).finding;
  if (last.found) {
    print(last, shorter);
  } else {
    print(finding, finding.choices);
  }
}

int replay(const RunPlan& plan) {
  const RangeResult result = run_one(plan);
  std::cout << "world: " << random_world(plan.seed).text() << "\n";
  if (result.finding.found) {
    print(result.finding, result.finding.choices);
    return 1;
  }
  std::cout << "nothing was violated in " << result.steps << " steps, " << result.messages
            << " messages; hash " << std::hex << result.hash << std::dec << "\n";
  return 0;
}

int run_seeds(const Arguments& arguments) {
  const auto began = std::chrono::steady_clock::now();
  RangeResult sum;
  const std::uint64_t end = arguments.first + arguments.seeds;
  for (std::uint64_t first = arguments.first; first < end; first += seeds_per_process) {
    const RangeResult result = run_range(first, std::min(seeds_per_process, end - first));
    sum.runs += result.runs;
    sum.steps += result.steps;
    sum.messages += result.messages;
    sum.failed_worlds += result.failed_worlds;
    sum.hash = (sum.hash ^ result.hash) * 1099511628211ULL;
    if (result.finding.found) {
      report(result.finding);
      return 1;
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::cout << sum.runs << " schedules (" << sum.failed_worlds << " with a fault that came true), "
            << sum.steps << " steps, " << sum.messages << " messages between actors, hash "
            << std::hex << sum.hash << std::dec << "; " << std::fixed << std::setprecision(0)
            << static_cast<double>(sum.runs) / seconds << " schedules/s in " << seconds << " s\n";
  return 0;
}

}  // namespace
}  // namespace troupe::test

int main(int count, char** values) {
  const auto arguments = troupe::test::parse(count, values);
  if (!arguments) {
    return troupe::test::usage();
  }
  return arguments->replay ? troupe::test::replay(*arguments->replay)
                           : troupe::test::run_seeds(*arguments);
}
