// What the demo tells a person: what is trained, how far it is, what came out.
// Texts and the comparison with the reference; nothing here trains. One thread.
#pragma once

#include "options.hpp"
#include "reference.hpp"
#include "sharded.hpp"
#include <troupe/core/trace.hpp>

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>

namespace gpt {

/// Model, text and training, a line each.
/// cores  that the process may use
std::string heading(const Options& options, size_t text_bytes, unsigned cores);

/// Where the trace is and how much of it.
std::string trace_line(const std::string& path, const troupe::Trace& trace);

/// The progress of one training. On a terminal one line that is overwritten, else about ten lines.
class Progress {
 public:
  /// `out` outlives it.
  Progress(const Options& options, std::ostream& out, bool terminal)
      : steps_(options.steps),
        tokens_per_step_(tokens_per_step(options)),
        out_(out),
        terminal_(terminal) {}

  /// After each step.
  void show(const StepRecord& step);
  /// After the last; later output begins on a line of its own.
  void finish();

 private:
  // Constant after construction.
  int64_t steps_, tokens_per_step_;
  std::ostream& out_;
  bool terminal_;
  // Since the last line shown.
  int64_t steps_since_ = 0;
  Seconds time_{};
  bool shown_ = false;
};

/// Sharded training beside the reference, by bits.
struct Comparison {
  int64_t numel = 0;  // of all parameters
  int64_t numel_different = 0;
  std::string first_different;  // "block.0.wqkv[17] is 0.1, the reference's is 0.2"
  int64_t steps = 0;
  int64_t losses_different = 0;
  /// If what was loaded is compared and no more: the ranks and steps behind it.
  std::optional<Resumed> loaded = {};

  [[nodiscard]] bool equal() const { return numel_different == 0 && losses_different == 0; }
};

/// reference_losses  of each step, from the first on
/// If a run was resumed by other ranks, the parameters that it has loaded are compared, with a
/// reference that has trained as far, on as many ranks as had saved them.
Comparison compare(const ShardedRun& run,
                   const ReferenceTrainer& reference,
                   std::span<const double> reference_losses);

/// One line that says "bitwise equal" or what differs.
std::string to_text(const Comparison& comparison);

/// What there is to tell of a run that was stopped by SIGTERM.
std::string stopped_text(const Options& options, const ShardedRun& run);

/// Losses, times, memory, collectives, prefetching and waiting of a run of at least one step.
std::string summary(const Options& options, const ShardedRun& run, unsigned cores);

}  // namespace gpt
