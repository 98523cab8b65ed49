/// One rank of the GPT trainer on a shaped link, in a process of its own, and what it measures.
#pragma once

#include "troupe/bench/link/host.hpp"
#include "troupe/examples/gpt/options.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace troupe::bench {

/// Per step of those that were measured, of one rank.
struct RankNumbers {
  double step_ns = 0;
  double forward_ns = 0;  ///< where it only computes
  double backward_ns = 0;
  double gathered_bytes = 0;  ///< payload that it sends to the other rank
  double reduced_bytes = 0;
  double wire_bytes = 0;  ///< what its queue to the link has let through, headers included
  /// Processor time of all threads but the trainer's, in the kernel too: what communication costs.
  double communication_cpu_ns = 0;
  double trainer_cpu_ns = 0;
  std::int64_t steps = 0;
};

/// What a process of one rank does: trains, or, without `options.join`, only computes what it
/// would.
struct RankRun {
  gpt::Options options;  ///< `steps` is not read
  Host host{};
  int core = 0;        ///< that it is kept on
  double seconds = 5;  ///< that are measured, after some steps to warm up
};

/// Runs each in a process, all at once, and returns what they have measured, in their order. To be
/// called by a process of one thread. Throws `std::runtime_error` if one of them fails.
std::vector<RankNumbers> run_ranks(const std::vector<RankRun>& runs);

}  // namespace troupe::bench
