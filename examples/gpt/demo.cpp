#include "demo.hpp"

#include "blas_check.hpp"
#include "corpus.hpp"
#include "ops.hpp"
#include "report.hpp"
#include "resume.hpp"
#include "sharded.hpp"
#include "strategy_table.hpp"
#include <troupe/core/trace.hpp>
#include <troupe/runtime/chrome_trace.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace gpt {

namespace {

// As a shell says that a signal has ended a program.
constexpr int exit_signal = 128;

/// Trains the reference as long as the first of `runs` was trained and compares it with all.
void compare_with_reference(const Options& options,
                            const Corpus& corpus,
                            unsigned cores,
                            Progress progress,
                            std::span<StrategyRun> runs) {
  ReferenceOptions as_trained = reference_options(options, cores);
  const ShardedRun& first = runs.front().run;
  size_t steps = first.steps.size();
  if (first.resumed && !first.weights_resumed.empty()) {
    as_trained.ranks = first.resumed->ranks;
    as_trained.replicas = first.resumed->replicas;
    as_trained.sum_at_step_end = first.resumed->sum_at_step_end;
    steps = static_cast<size_t>(first.resumed->step);
  } else if (first.resumed) {
    steps += static_cast<size_t>(first.resumed->step);
  }
  ReferenceTrainer reference(options.config, as_trained, corpus);
  std::vector<double> losses;
  for (size_t step = 0; step < steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    losses.push_back(reference.step());
    progress.show({losses.back(), std::chrono::steady_clock::now() - begin,
                   static_cast<int64_t>(losses.size())});
  }
  progress.finish();
  for (StrategyRun& each : runs) {
    each.comparison = compare(each.run, reference, losses);
  }
}

/// Of this process's ranks.
std::filesystem::path trace_path(const Options& options) {
  std::filesystem::path path = options.trace;
  if (options.join && !path.empty()) {
    path.replace_extension("rank" + std::to_string(options.join->rank) + path.extension().string());
  }
  return path;
}

/// What `--trace` asks for. The file is opened before anything is trained, since a wrong path is
/// better known then, and written also if training fails.
class TraceFile {
 public:
  explicit TraceFile(std::filesystem::path path) : path_(std::move(path)) {
    if (asked()) {
      file_.open(path_, std::ios::binary);
    }
  }

  /// Empty if all went well.
  std::string error() const {
    return asked() && !file_ ? "cannot write the trace to " + path_.string() + ": " +
                                   std::generic_category().message(errno)
                             : "";
  }
  troupe::Trace* trace() { return asked() ? &trace_ : nullptr; }
  void write() {
    if (asked()) {
      troupe::write_chrome_trace(file_, trace_);
      file_.close();
    }
  }
  std::string summary() const { return asked() ? trace_line(path_.string(), trace_) : ""; }

 private:
  bool asked() const { return !path_.empty(); }

  std::filesystem::path path_;
  std::ofstream file_;
  troupe::Trace trace_;
};

/// None, and a line to `err`, if the trace cannot be written or training has diverged.
std::optional<ShardedRun> train_strategy(const Options& options,
                                         const Corpus& corpus,
                                         TraceFile& trace,
                                         std::ostream& out,
                                         std::ostream& err,
                                         bool terminal) {
  out << "\nsharded training, " << troupe::row_of(options.strategy).name << "\n" << std::flush;
  Progress progress(options, out, terminal);
  const auto warn = [&err](const std::string& text) {
    err << "gpt: " << text << "\n" << std::flush;
  };
  ShardedRun run;
  try {
    run = train_sharded(options, corpus, [&](const StepRecord& step) { progress.show(step); },
                        {.on_failure = warn, .on_warning = warn, .trace = trace.trace()});
  } catch (const troupe::Error&) {
    trace.write();
    throw;
  }
  trace.write();
  progress.finish();
  if (const std::string error = trace.error(); !error.empty()) {
    err << "gpt: " << error << "\n";
    return std::nullopt;
  }
  if (!std::isfinite(run.steps.back().loss)) {
    err << "gpt: training diverged: the loss of step " << run.steps.back().number
        << " is not finite; try a smaller --lr\n";
    return std::nullopt;
  }
  return run;
}

}  // namespace

int run_demo(const Options& options, std::ostream& out, std::ostream& err, bool terminal) {
  const auto loaded = Corpus::load(options.data, options.config.sequence);
  if (const auto* error = std::get_if<CorpusError>(&loaded)) {
    err << "gpt: " << error->text << "\n";
    return 2;
  }
  const auto& corpus = std::get<Corpus>(loaded);
  std::error_code unknown;  // neither exists, say
  if (std::filesystem::equivalent(options.trace, options.data, unknown)) {
    err << "gpt: --trace would overwrite the text that --data names: " << options.trace.string()
        << "\n";
    return 2;
  }
  if (const auto refused = save_refused(options)) {
    err << "gpt: " << *refused << "\n";
    return 2;
  }
  TraceFile trace(trace_path(options));
  if (const std::string error = trace.error(); !error.empty()) {
    err << "gpt: " << error << "\n";
    return 2;
  }
  use_one_blas_thread();
  if (const auto error = check_blas(options.config)) {
    err << "gpt: " << *error << "\n";
    return 1;
  }
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  out << heading(options, corpus.text().size(), cores) << std::flush;

  std::vector<StrategyRun> runs;
  for (const troupe::Strategy strategy : strategies(options)) {
    Options own = options;
    own.strategy = strategy;
    auto run = train_strategy(own, corpus, trace, out, err, terminal);
    if (!run) {
      return 1;
    }
    if (run->stopped) {
      out << "\n" << stopped_text(own, *run) << std::flush;
      return exit_signal + SIGTERM;
    }
    runs.push_back({.strategy = strategy, .run = *std::move(run)});
  }
  if (!speaks(options)) {
    return 0;
  }

  const std::optional<Resumed>& resumed = runs.front().run.resumed;
  if (resumed && resumed->mixed) {
    out << "\nno unsharded reference: the ranks have changed between steps before\n";
  } else if (options.reference) {
    out << "\nunsharded reference\n" << std::flush;
    compare_with_reference(options, corpus, cores, Progress(options, out, terminal), runs);
  }
  out << "\n";
  if (runs.size() > 1) {
    out << strategy_table(runs) << std::flush;
  } else {
    const StrategyRun& only = runs.front();
    out << summary(options, only.run, cores) << trace.summary()
        << (only.comparison ? to_text(*only.comparison) : "final parameters        not compared\n")
        << std::flush;
  }
  const bool equal = std::ranges::all_of(
      runs, [](const StrategyRun& each) { return !each.comparison || each.comparison->equal(); });
  return equal ? 0 : 1;
}

}  // namespace gpt
