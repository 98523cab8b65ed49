// What the demo can be asked for on the command line, and the reading of it.
// Values and pure functions; any thread. Nothing here prints or ends the process.
#pragma once

#include "model.hpp"
#include "reference.hpp"
#include <troupe/core/strategy.hpp>
#include <troupe/runtime/checkpoint.hpp>
#include <troupe/runtime/options.hpp>
#include <troupe/runtime/world.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace gpt {

/// One run of the demo. The defaults train in about a minute on two cores, the reference included.
struct Options {
  Config config = {};
  int ranks = 4;
  /// This process is one of the ranks, as a launcher says; not set: all are threads of it.
  std::optional<troupe::JoinOptions> join = {};
  troupe::Strategy strategy = troupe::Strategy::full_shard;
  bool all_strategies = false;  // each in turn; `strategy` is not read
  bool overlap = true;
  int64_t bucket_bytes = 0;      // largest bucket; 0: the strategy's own choice
  bool keep_gradients = false;   // full gradient buffers stay (ZeRO-1)
  int replicas = 1;              // copies of the sharded model (HSDP)
  bool sum_at_step_end = false;  // gradients over the copies, instead of behind each reduce
  bool keep_gathered = false;    // full_shard: parameters stay until the step ends
  int regather = 0;              // full_shard: ranks that gather a second time together; 0: all
  int64_t micro_batches = 1;     // per step
  int64_t steps = 150;
  uint64_t seed = 1;  // of initial values and of the choice of batches
  OptimizerOptions optimizer = {};
  bool bf16_parameters = false;            // gathered in bf16; main weights stay fp32
  std::optional<int> slots = {};           // for gathered blocks; not set: chosen by the library
  std::optional<int> prefetch_depth = {};  // units gathered ahead; not set: likewise
  std::filesystem::path data = "/usr/share/common-licenses";
  bool reference = true;              // train it too, and compare
  std::filesystem::path trace = {};   // file to write; empty: none
  std::filesystem::path save = {};    // folder of checkpoints to write; empty: none
  int64_t save_every = 0;             // steps; 0: after the last one only
  std::filesystem::path resume = {};  // checkpoint, or a folder of such, to go on from; empty: none
  troupe::FileHook before_file = {};  // sees what saves do; not on the command line
};

/// Why there is nothing to run: help was asked for (code 0) or an option is wrong (code 2).
struct Refusal {
  int exit_code = 2;
  std::string text;  // the help, or one line
};

/// Reads the arguments that follow the program's name. A wrong option, value or combination is a
/// Refusal whose line names it and what is expected; whether the data can be read is not looked at.
/// join  what a launcher has told this process, if one has started it
std::variant<Options, Refusal> parse_options(
    std::span<const char* const> arguments,
    const std::optional<troupe::JoinOptions>& join = std::nullopt);

/// What the runtime has to be given. `all_strategies` is not read.
troupe::Options runtime_options(const Options& options);

/// What the reference trainer has to be given to do the same.
/// threads  that compute its simulated ranks, at least 1
ReferenceOptions reference_options(const Options& options, int64_t threads);

/// The strategies to train with, in the order of the library's table.
std::vector<troupe::Strategy> strategies(const Options& options);

/// Whether this process is the one that tells what comes out: all ranks are its threads, or it is
/// rank 0.
bool speaks(const Options& options);

/// Trained by all ranks together in one step.
int64_t tokens_per_step(const Options& options);

}  // namespace gpt
