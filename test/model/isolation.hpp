/// Runs of worlds in child processes: a version with a fault may crash, hang, or be left in pieces,
/// and the next run must not notice. What is worth knowing is written to memory that both share.
#pragma once

#include "outcome.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace troupe::test {

/// What was found wrong.
struct Finding {
  bool found = false;
  std::uint64_t seed = 0;
  std::string invariant;
  std::string text;
  std::string history;
  std::uint64_t step = 0;
  std::vector<std::uint16_t> choices;
};

struct RangeResult {
  Finding finding;
  std::uint64_t runs = 0;
  std::uint64_t steps = 0;
  std::uint64_t messages = 0;
  std::uint64_t failed_worlds = 0;    ///< with a planned fault that came true
  std::uint64_t hash = 0;             ///< of all runs, in order
  std::uint64_t mutant_executed = 0;  ///< see mutant.hpp
};

/// The world and the chooser of a run.
struct RunPlan {
  std::uint64_t seed = 0;
  bool replay = false;  ///< by `choices` instead of by the seed
  std::vector<std::uint16_t> choices;
};

/// Runs the worlds of seeds [first, first + count) until one violates something; in a child
/// process. A crash, or a run of more than `seconds_per_run` of processor time, is a violation.
RangeResult run_range(std::uint64_t first, std::uint64_t count, unsigned seconds_per_run = 20);

/// One run, also in a child process.
RangeResult run_one(const RunPlan& plan, unsigned seconds_per_run = 20);

}  // namespace troupe::test
