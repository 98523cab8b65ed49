#include "demo.hpp"

#include "blas_check.hpp"
#include "corpus.hpp"
#include "ops.hpp"
#include "report.hpp"
#include "sharded.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

namespace gpt {

namespace {

/// Trains the reference as long as `run` was trained and compares.
Comparison train_reference(const Options& options,
                           const Corpus& corpus,
                           const ShardedRun& run,
                           unsigned cores,
                           Progress progress) {
  ReferenceTrainer reference(options.config, reference_options(options, cores), corpus);
  std::vector<double> losses;
  for (size_t step = 0; step < run.steps.size(); ++step) {
    const auto begin = std::chrono::steady_clock::now();
    losses.push_back(reference.step());
    progress.show({losses.back(), std::chrono::steady_clock::now() - begin});
  }
  progress.finish();
  return compare(run, reference, losses);
}

}  // namespace

int run_demo(const Options& options, std::ostream& out, std::ostream& err, bool terminal) {
  const auto loaded = Corpus::load(options.data, options.config.sequence);
  if (const auto* error = std::get_if<CorpusError>(&loaded)) {
    err << "gpt: " << error->text << "\n";
    return 2;
  }
  const auto& corpus = std::get<Corpus>(loaded);
  use_one_blas_thread();
  if (const auto error = check_blas(options.config)) {
    err << "gpt: " << *error << "\n";
    return 1;
  }
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  out << heading(options, corpus.text().size(), cores) << "\nsharded training\n" << std::flush;

  Progress progress(options, out, terminal);
  const auto warn = [&err](const std::string& text) {
    err << "gpt: " << text << "\n" << std::flush;
  };
  const ShardedRun run =
      train_sharded(options, corpus, [&](const StepRecord& step) { progress.show(step); },
                    {.on_failure = warn, .on_warning = warn});
  progress.finish();
  if (!std::isfinite(run.steps.back().loss)) {
    err << "gpt: training diverged: the loss of step " << run.steps.size()
        << " is not finite; try a smaller --lr\n";
    return 1;
  }

  std::optional<Comparison> comparison;
  if (options.reference) {
    out << "\nunsharded reference\n" << std::flush;
    comparison = train_reference(options, corpus, run, cores, Progress(options, out, terminal));
  }
  out << "\n" << summary(options, run, cores);
  out << (comparison ? to_text(*comparison) : "final parameters        not compared\n")
      << std::flush;
  return comparison ? comparison->exit_code() : 0;
}

}  // namespace gpt
