#include "report.hpp"

#include "text.hpp"
#include <troupe/runtime/report.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace gpt {

namespace {

/// "nan" whatever its sign, which says nothing.
std::string loss_text(double loss) {
  return std::isnan(loss) ? "nan" : formatted("%.4f", loss);
}

std::string tokens_per_second(int64_t tokens, Seconds time) {
  const double rate = time.count() > 0 ? static_cast<double>(tokens) / time.count() : 0;
  return grouped(static_cast<int64_t>(rate)) + " tokens/s";
}

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

std::string losses(const ShardedRun& run) {
  constexpr size_t window = 10;  // batches differ, so one step's loss says little
  const size_t count = std::min(window, run.steps.size());
  double sum = 0;
  for (size_t i = run.steps.size() - count; i < run.steps.size(); ++i) {
    sum += run.steps[i].loss;
  }
  return line("loss", loss_text(run.steps.front().loss) + " -> " +
                          loss_text(run.steps.back().loss) +
                          " nats per byte, first to last step; mean of the last " +
                          count_of(static_cast<int64_t>(count), "step") + " " +
                          loss_text(sum / static_cast<double>(count)));
}

std::string step_times(const Options& options, const ShardedRun& run) {
  std::vector<Seconds> times;
  Seconds sum{};
  for (const StepRecord& step : run.steps) {
    times.push_back(step.time);
    sum += step.time;
  }
  std::ranges::sort(times);
  const auto milliseconds = [](Seconds time) { return 1e3 * time.count(); };
  return line(
      "step time",
      formatted("median %.1f ms, from %.1f to %.1f ms; ", milliseconds(times[times.size() / 2]),
                milliseconds(times.front()), milliseconds(times.back())) +
          tokens_per_second(tokens_per_step(options) * static_cast<int64_t>(times.size()), sum));
}

std::string waiting(const ShardedRun& run, unsigned cores) {
  Seconds least = run.reports.front().waited;
  Seconds most = least;
  for (const troupe::Report& report : run.reports) {
    least = std::min<Seconds>(least, report.waited);
    most = std::max<Seconds>(most, report.waited);
  }
  Seconds sum{};
  for (const StepRecord& step : run.steps) {
    sum += step.time;
  }
  std::string text =
      line("waited, over ranks", formatted("%.3f to %.3f s for communication and peers, of %.3f s",
                                           least.count(), most.count(), sum.count()));
  if (2 * run.reports.size() > cores) {
    text += line("", count_of(static_cast<int64_t>(run.reports.size()), "rank") + " share " +
                         count_of(cores, "core") +
                         ": a rank that waits leaves its core to another, so this");
    text += line("", "does not tell how much communication computation could hide");
  }
  return text;
}

std::string strategy_names(const Options& options) {
  std::string names;
  for (const troupe::Strategy strategy : strategies(options)) {
    names += (names.empty() ? "" : ", then ") + std::string(troupe::row_of(strategy).name);
  }
  return names;
}

/// What the strategy is told beside its defaults, "; …" for each.
std::string variant(const Options& options) {
  std::string text;
  const auto add = [&text](bool given, const std::string& what) {
    text += given ? "; " + what : "";
  };
  add(!options.overlap, "no overlap");
  add(options.bucket_bytes > 0, "buckets of at most " + count_of(options.bucket_bytes, "byte"));
  add(options.keep_gradients, "gradients kept");
  add(options.replicas > 1, count_of(options.replicas, "replica") +
                                (options.sum_at_step_end ? ", summed at the end of a step" : ""));
  add(options.keep_gathered, "parameters kept gathered");
  add(options.regather > 0, "gathered again among " + count_of(options.regather, "rank"));
  return text;
}

}  // namespace

std::string heading(const Options& options, size_t text_bytes, unsigned cores) {
  const Config& config = options.config;
  int64_t numel_total = 0;
  const std::vector<UnitSpec> specs = units(config);
  for (const UnitSpec& unit : specs) {
    for (const ParameterSpec& parameter : unit.parameters) {
      numel_total += numel(parameter);
    }
  }
  const bool sgd = options.optimizer.kind == OptimizerOptions::Kind::sgd;
  return line("model", "byte-level GPT: " + count_of(config.layers, "block") + ", width " +
                           std::to_string(config.width) + ", " + count_of(config.heads, "head") +
                           "; " + grouped(numel_total) + " parameters in " +
                           count_of(static_cast<int64_t>(specs.size()), "unit")) +
         line("text",
              options.data.string() + ", " + count_of(static_cast<int64_t>(text_bytes), "byte")) +
         line("step", count_of(options.ranks, "rank") + " x " +
                          count_of(options.micro_batches, "micro-batch") + " x " +
                          count_of(config.batch, "sequence") + " x " +
                          count_of(config.sequence, "byte") + " = " +
                          count_of(tokens_per_step(options), "token")) +
         line("training", count_of(options.steps, "step") + " of " + (sgd ? "sgd" : "adamw") +
                              formatted(", lr %g, seed ", double{options.optimizer.lr}) +
                              std::to_string(options.seed) + "; parameters gathered in " +
                              (options.bf16_parameters ? "bf16" : "fp32")) +
         line("sharding",
              strategy_names(options) + " over " + count_of(options.ranks, "rank") +
                  (options.join ? " (processes; this one has " : " (threads of this process) on ") +
                  count_of(cores, "core") + (options.join ? ")" : "") + variant(options));
}

std::string trace_line(const std::string& path, const troupe::Trace& trace) {
  int64_t records = 0;
  int64_t dropped = 0;
  for (int rank = 0; rank < trace.rank_count(); ++rank) {
    records += static_cast<int64_t>(trace[rank].spans().size() + trace[rank].counts().size());
    dropped += static_cast<int64_t>(trace[rank].dropped());
  }
  return line("trace", path + ": " + count_of(records, "record") +
                           (dropped > 0 ? " (" + grouped(dropped) + " more were dropped)" : "") +
                           "; open it in ui.perfetto.dev");
}

void Progress::show(const StepRecord& step) {
  ++steps_since_;
  time_ += step.time;
  // Lines are for logs, where every tenth of the way is enough.
  const int64_t every = terminal_ ? 1 : std::max<int64_t>(1, steps_ / 10);
  if (shown_ && step.number % every != 0 && step.number != steps_) {
    return;
  }
  out_ << (terminal_ ? "\r" : "")
       << formatted("  step %*lld of %lld   loss ", static_cast<int>(std::to_string(steps_).size()),
                    static_cast<long long>(step.number), static_cast<long long>(steps_))
       << loss_text(step.loss) << "   " << tokens_per_second(steps_since_ * tokens_per_step_, time_)
       << (terminal_ ? "      " : "\n") << std::flush;
  shown_ = true;
  steps_since_ = 0;
  time_ = {};
}

void Progress::finish() {
  if (terminal_ && shown_) {
    out_ << "\n" << std::flush;
  }
}

Comparison compare(const ShardedRun& run,
                   const ReferenceTrainer& reference,
                   std::span<const double> reference_losses) {
  Comparison comparison;
  const bool loaded_only = !run.weights_resumed.empty();
  const auto& weights = loaded_only ? run.weights_resumed : run.weights;
  for (size_t unit = 0; unit < weights.size(); ++unit) {
    const UnitSpec& spec = reference.specs()[unit];
    for (size_t i = 0; i < weights[unit].size(); ++i) {
      const std::span<const float> own = weights[unit][i];
      const std::span<const float> other = reference.weight(unit, i);
      comparison.numel += static_cast<int64_t>(own.size());
      for (size_t k = 0; k < own.size(); ++k) {
        if (same_bits(own[k], other[k])) {
          continue;
        }
        if (comparison.numel_different++ == 0) {
          comparison.first_different = full_name(spec, spec.parameters[i]) +
                                       formatted("[%zu] is %.9g, the reference's is %.9g", k,
                                                 double{own[k]}, double{other[k]});
        }
      }
    }
  }
  if (loaded_only) {
    comparison.loaded = run.resumed;
    return comparison;
  }
  const auto before = run.resumed ? static_cast<size_t>(run.resumed->step) : 0;
  for (size_t step = 0; step < run.steps.size(); ++step) {
    ++comparison.steps;
    comparison.losses_different +=
        same_bits(run.steps[step].loss, reference_losses[before + step]) ? 0 : 1;
  }
  return comparison;
}

std::string to_text(const Comparison& comparison) {
  if (comparison.loaded && comparison.equal()) {
    return line("loaded parameters", "bitwise equal to those of the unsharded reference after " +
                                         count_of(comparison.loaded->step, "step") + " of " +
                                         count_of(comparison.loaded->ranks, "rank") + ": all " +
                                         grouped(comparison.numel)) +
           line("", "what other ranks, or in another order, trained since is not compared");
  }
  if (comparison.equal()) {
    return line("final parameters", "bitwise equal to those of the unsharded reference: all " +
                                        grouped(comparison.numel) + ", and the losses of " +
                                        count_of(comparison.steps, "step"));
  }
  std::string text =
      "DIFFERENT from those of the unsharded reference: " + grouped(comparison.numel_different) +
      " of " + grouped(comparison.numel);
  if (comparison.numel_different > 0) {
    text += ", first " + comparison.first_different;
  }
  return line("final parameters", text + "; " + grouped(comparison.losses_different) + " of " +
                                      count_of(comparison.steps, "loss") + " differ");
}

std::string checkpoints(const Options& options, const ShardedRun& run) {
  std::string text;
  if (run.resumed) {
    text +=
        line("resumed", run.resumed->folder + ", saved by " + count_of(run.resumed->ranks, "rank") +
                            " after " + count_of(run.resumed->step, "step"));
  }
  if (run.saves > 0) {
    text += line("saved", count_of(run.saves, "checkpoint") + " to " + options.save.string());
  }
  return text;
}

std::string stopped_text(const Options& options, const ShardedRun& run) {
  return checkpoints(options, run) +
         line("stopped", "by SIGTERM, after step " + std::to_string(run.steps.back().number) +
                             " of " + std::to_string(options.steps));
}

std::string summary(const Options& options, const ShardedRun& run, unsigned cores) {
  return checkpoints(options, run) + losses(run) + step_times(options, run) +
         troupe::to_text(run.reports.front()) +
         line("the trainer's own",
              std::string("of the collectives is one all_gather a step, for the loss") +
                  (options.join ? "; and the question whether to stop" : "")) +
         waiting(run, cores);
}

}  // namespace gpt
