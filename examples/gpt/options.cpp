#include "options.hpp"

#include <troupe/core/mesh.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

namespace gpt {

namespace {

// Ranks are threads of this process; World::local takes no more.
constexpr int64_t ranks_max = 256;

Refusal refusal(std::string line) {
  std::ranges::replace(line, '\n', ' ');
  return {2, line + " (--help lists the options)"};
}

/// As the user writes it, before anything is checked.
struct Arguments {
  Options options;
  std::optional<troupe::JoinOptions> join;
  std::optional<int64_t> ranks;
  int64_t replicas = 1;
  int64_t regather = 0;
  std::string strategy = "full_shard";
  bool no_overlap = false;
  std::optional<int64_t> slots;
  std::optional<int64_t> prefetch_depth;
  double lr = 1e-3;
  std::string seed = "1";
  std::string optimizer = "adamw";
  std::string dtype = "fp32";
  bool no_reference = false;
};

void add_options(CLI::App& app, Arguments& arguments) {
  Options& options = arguments.options;
  const auto add = [&app](const char* name, auto& value, const char* what, const char* type) {
    return app.add_option(name, value, what)->type_name(type)->capture_default_str();
  };
  const char* const sharding = "Sharding";
  add("--ranks", arguments.ranks,
      "threads that train together, each with a shard; a launcher's processes take their number "
      "from it",
      "N")
      ->default_str("4")
      ->group(sharding);
  add("--slots", arguments.slots,
      "blocks that each rank has room to gather; not given: as many as pay off", "N")
      ->default_str("")
      ->group(sharding);
  add("--prefetch-depth", arguments.prefetch_depth,
      "units gathered ahead of their use; not given: one less than slots", "N")
      ->default_str("")
      ->group(sharding);
  add("--dtype", arguments.dtype, "of gathered parameters: fp32 or bf16", "TYPE")->group(sharding);

  add("--strategy", arguments.strategy,
      "owner_broadcast, sharded_optimizer, full_shard, or all: each in turn, compared", "NAME")
      ->group(sharding);
  app.add_flag("--no-overlap", arguments.no_overlap,
               "wait for each collective where it is launched")
      ->group(sharding);
  add("--bucket-bytes", options.bucket_bytes,
      "most that travels together; 0: the strategy's choice", "N")
      ->group(sharding);
  app.add_flag("--keep-gradients", options.keep_gradients,
               "full gradients keep their memory (with sharded_optimizer: ZeRO-1)")
      ->group(sharding);
  add("--replicas", arguments.replicas, "copies of the sharded model (HSDP)", "N")->group(sharding);
  app.add_flag("--sum-at-step-end", options.sum_at_step_end,
               "sum gradients over the copies once a step, not in every micro-batch")
      ->group(sharding);
  app.add_flag("--keep-gathered", options.keep_gathered,
               "full_shard: gathered parameters stay until the step ends")
      ->group(sharding);
  add("--regather", arguments.regather,
      "full_shard: neighbours that keep what they gathered and do so again alone; 0: all ranks do",
      "N")
      ->group(sharding);

  const char* const model = "Model";
  add("--layers", options.config.layers, "transformer blocks", "N")->group(model);
  add("--width", options.config.width, "elements of one token's vector", "N")->group(model);
  add("--heads", options.config.heads, "of attention; divides the width", "N")->group(model);

  const char* const training = "Training";
  add("--data", options.data, "file or folder of text", "PATH")->group(training);
  add("--sequence", options.config.sequence, "tokens (bytes) in one sequence", "N")
      ->group(training);
  add("--batch", options.config.batch, "sequences per rank and micro-batch", "N")->group(training);
  add("--micro-batches", options.micro_batches, "per step", "N")->group(training);
  add("--steps", options.steps, "updates of the parameters", "N")->group(training);
  add("--optimizer", arguments.optimizer, "adamw or sgd", "NAME")->group(training);
  add("--lr", arguments.lr, "learning rate", "X")->group(training);
  add("--seed", arguments.seed, "of initial values and of the choice of text", "N")
      ->group(training);

  const char* const checkpoints = "Checkpoints";
  add("--save", options.save, "folder for them; the newest two are kept", "DIR")
      ->default_str("")
      ->group(checkpoints);
  add("--save-every", options.save_every, "steps; 0: after the last step only", "N")
      ->group(checkpoints);
  add("--resume", options.resume,
      "go on from the newest one in this folder, as if never stopped; strategy and ranks may be "
      "others, "
      "model, text, seed, batches, dtype and optimizer not",
      "DIR")
      ->default_str("")
      ->group(checkpoints);

  app.add_flag("--no-reference", arguments.no_reference,
               "do not train the unsharded reference, compare nothing");
  add("--trace", options.trace,
      "write what each rank did when, for ui.perfetto.dev; not given: no trace", "FILE")
      ->default_str("");
}

/// The first count that is out of its range, as a line.
std::optional<std::string> count_out_of_range(const Arguments& arguments) {
  struct Limit {
    const char* name;
    int64_t value, min, max;
  };
  constexpr int64_t bytes_max = int64_t{1} << 40;
  const std::array<Limit, 9> limits{
      {{"ranks", arguments.ranks.value_or(1), 1, ranks_max},
       {"bucket-bytes", arguments.options.bucket_bytes, 0, bytes_max},
       {"replicas", arguments.replicas, 1, ranks_max},
       {"regather", arguments.regather, 0, ranks_max},
       {"slots", arguments.slots.value_or(1), 1, 1026},  // no model has more units
       {"prefetch-depth", arguments.prefetch_depth.value_or(0), 0, 1026},
       {"micro-batches", arguments.options.micro_batches, 1, 1024},
       {"save-every", arguments.options.save_every, 0, 1'000'000},
       {"steps", arguments.options.steps, 1, 1'000'000}}};
  for (const Limit& limit : limits) {
    if (limit.value < limit.min || limit.value > limit.max) {
      return std::string(limit.name) + " is " + std::to_string(limit.value) + ", must be from " +
             std::to_string(limit.min) + " to " + std::to_string(limit.max);
    }
  }
  return std::nullopt;
}

/// Why these options cannot be had together, as far as it is known without a model.
std::optional<std::string> combination_refused(const Options& options) {
  if (options.all_strategies && !options.trace.empty()) {
    return "trace is of one training, so not for --strategy all";
  }
  if (options.all_strategies && !options.save.empty()) {
    return "save is of one training, so not for --strategy all";
  }
  if (options.save_every > 0 && options.save.empty()) {
    return "save-every is " + std::to_string(options.save_every) + ", but no --save says where";
  }
  for (const troupe::Strategy strategy : strategies(options)) {
    Options own = options;
    own.strategy = strategy;
    if (const auto valid = troupe::validate(runtime_options(own)); !valid) {
      return valid.failure().text;
    }
    if (options.slots && (strategy != troupe::Strategy::full_shard || options.keep_gathered)) {
      return "slots is " + std::to_string(*options.slots) + ", but with " +
             troupe::row_of(strategy).name + (options.keep_gathered ? " and keep-gathered" : "") +
             " each bucket has memory of its own; leave it out";
    }
  }
  const auto mesh = troupe::resolve(runtime_options(options).mesh, options.ranks);
  if (!mesh) {
    return mesh.failure().text;
  }
  if (options.regather > 0 && mesh.value().shard % options.regather != 0) {
    return "regather is " + std::to_string(options.regather) +
           ", must divide the ranks that share a copy, " + std::to_string(mesh.value().shard);
  }
  return std::nullopt;
}

std::optional<troupe::Strategy> strategy_named(const std::string& name) {
  const auto row = std::ranges::find(troupe::strategies, name, &troupe::StrategyRow::name);
  return row == troupe::strategies.end() ? std::nullopt : std::optional(row->strategy);
}

/// A whole number of 64 bits, digits only.
std::optional<uint64_t> number(const std::string& text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && rest == end ? std::optional(value) : std::nullopt;
}

std::optional<int> narrowed(std::optional<int64_t> value) {
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

std::variant<Options, Refusal> checked(const Arguments& arguments) {
  Options options = arguments.options;
  if (const auto error = count_out_of_range(arguments)) {
    return refusal(*error);
  }
  if (const auto error = validate(options.config)) {
    return refusal(*error);
  }
  // Anything above diverges at once; the test is false for NaN too.
  const auto lr = static_cast<float>(arguments.lr);
  if (!(lr > 0 && lr <= 100)) {
    std::array<char, 64> line{};
    std::snprintf(line.data(), line.size(), "lr is %g, must be above 0 and at most 100",
                  arguments.lr);
    return refusal(line.data());
  }
  const auto seed = number(arguments.seed);
  if (!seed) {
    return refusal("seed is '" + arguments.seed + "', must be a whole number from 0 to 2^64 - 1");
  }
  if (arguments.optimizer != "adamw" && arguments.optimizer != "sgd") {
    return refusal("optimizer is '" + arguments.optimizer + "', must be adamw or sgd");
  }
  if (arguments.dtype != "fp32" && arguments.dtype != "bf16") {
    return refusal("dtype is '" + arguments.dtype + "', must be fp32 or bf16");
  }
  options.all_strategies = arguments.strategy == "all";
  const auto strategy = strategy_named(arguments.strategy);
  if (!strategy && !options.all_strategies) {
    return refusal("strategy is '" + arguments.strategy +
                   "', must be owner_broadcast, sharded_optimizer, full_shard or all");
  }
  options.strategy = strategy.value_or(options.strategy);
  if (arguments.join && arguments.ranks && *arguments.ranks != arguments.join->world_size) {
    return refusal("ranks is " + std::to_string(*arguments.ranks) +
                   ", but the launcher has started " + std::to_string(arguments.join->world_size) +
                   "; leave it out");
  }
  options.join = arguments.join;
  options.ranks = arguments.join    ? arguments.join->world_size
                  : arguments.ranks ? static_cast<int>(*arguments.ranks)
                                    : options.ranks;
  options.replicas = static_cast<int>(arguments.replicas);
  options.regather = static_cast<int>(arguments.regather);
  options.overlap = !arguments.no_overlap;
  options.slots = narrowed(arguments.slots);
  options.prefetch_depth = narrowed(arguments.prefetch_depth);
  options.seed = *seed;
  options.optimizer.kind =
      arguments.optimizer == "sgd" ? OptimizerOptions::Kind::sgd : OptimizerOptions::Kind::adamw;
  options.optimizer.lr = lr;
  options.bf16_parameters = arguments.dtype == "bf16";
  options.reference = !arguments.no_reference;
  if (const auto error = combination_refused(options)) {
    return refusal(*error);
  }
  return options;
}

}  // namespace

std::variant<Options, Refusal> parse_options(std::span<const char* const> arguments,
                                             const std::optional<troupe::JoinOptions>& join) {
  CLI::App app(
      "Trains a byte-level GPT with its parameters, gradients and optimizer state sharded over "
      "ranks,\nthen the same GPT unsharded, and compares the final parameters bit by bit. Ranks "
      "are "
      "threads of\nthis process, or the processes that a launcher has started "
      "(docs/launching.md).\n\n"
      "Exit code: 0 all is equal; 1 a difference, or training failed; 2 a wrong option; 143 "
      "stopped "
      "by\nSIGTERM, as a rank of a launcher, when the step was done and saved.",
      "gpt");
  Arguments read;
  read.join = join;
  add_options(app, read);
  // CLI11 takes them last first.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    return Refusal{0, app.help()};
  } catch (const CLI::ParseError& error) {
    return refusal(error.what());
  }
  return checked(read);
}

troupe::Options runtime_options(const Options& options) {
  return {.strategy = options.strategy,
          .mesh = {.replicate = options.replicas},
          .overlap = options.overlap,
          .reshard_after_forward = !options.keep_gathered,
          .regather_group_size = options.regather,
          .free_full_gradients = !options.keep_gradients,
          .slots = options.slots,
          .prefetch_depth = options.prefetch_depth,
          .bucket_bytes = options.bucket_bytes,
          .sum_replicas_at_step_end = options.sum_at_step_end};
}

ReferenceOptions reference_options(const Options& options, int64_t threads) {
  return {.ranks = options.ranks,
          .micro_batches = options.micro_batches,
          .threads = threads,
          .replicas = options.replicas,
          .sum_at_step_end = options.sum_at_step_end,
          .seed = options.seed,
          .bf16_parameters = options.bf16_parameters,
          .optimizer = options.optimizer};
}

std::vector<troupe::Strategy> strategies(const Options& options) {
  if (!options.all_strategies) {
    return {options.strategy};
  }
  std::vector<troupe::Strategy> all;
  all.reserve(troupe::strategies.size());
  for (const troupe::StrategyRow& row : troupe::strategies) {
    all.push_back(row.strategy);
  }
  return all;
}

bool speaks(const Options& options) {
  return !options.join || options.join->rank == 0;
}

int64_t tokens_per_step(const Options& options) {
  return options.ranks * options.micro_batches * options.config.batch * options.config.sequence;
}

}  // namespace gpt
