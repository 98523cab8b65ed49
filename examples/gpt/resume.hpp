// Checkpoints of the demo: what is told of a run in them, and going on from one.
// Errors: troupe::Error.
#pragma once

#include "corpus.hpp"
#include "options.hpp"
#include <troupe/runtime/runtime.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace gpt {

/// Where a run has begun that was resumed, and the ranks that had trained so far.
struct Resumed {
  std::string folder;  // of the checkpoint
  int64_t step = 0;
  int ranks = 1;
  int replicas = 1;
  bool sum_at_step_end = false;
  bool mixed = false;  // they were not the same in all steps so far

  /// Whether steps to come are the same bits as if the run had never stopped: batches are dealt to
  /// the ranks, and gradients are added in their order.
  [[nodiscard]] bool goes_on(const Options& options) const;
};

/// What checkpoints are told of a run, as text: the ranks, and what may not change. `mixed`: some
/// of its steps were trained with other ranks.
std::string describe_run(const Options& options, const Corpus& corpus, bool mixed);

/// Loads `options.resume`. Refused (bad_configuration): a checkpoint of a run with another text,
/// optimizer or the like, or that has all of `options.steps` behind it. Collective.
Resumed resume(troupe::Runtime& runtime, const Options& options, const Corpus& corpus);

/// One line if `options.save` cannot be made, or has a checkpoint that this run does not go on
/// from: better known before anything is trained. Without `options.save`: nothing.
std::optional<std::string> save_refused(const Options& options);

}  // namespace gpt
