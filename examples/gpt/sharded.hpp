// The sharded trainer: the same GPT as the reference's, on a troupe::Runtime. One rank computes
// with its own Network on the thread that calls; the runtime gathers what a unit needs, sums
// gradients over the ranks and updates this rank's shards.
// Guarantees: losses and parameters equal those of ReferenceTrainer bit by bit (reference.hpp,
// [Note: order of operations]), for every strategy, any number of ranks, slots and any prefetch
// depth.
// Errors: troupe::Error.
#pragma once

#include "buffer.hpp"
#include "corpus.hpp"
#include "network.hpp"
#include "options.hpp"
#include "resume.hpp"
#include <troupe/core/model.hpp>
#include <troupe/runtime/optimizer.hpp>
#include <troupe/runtime/runtime.hpp>
#include <troupe/runtime/world.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

namespace gpt {

/// The units and parameters of gpt::units as the library wants them told, in the same order: units
/// have the same numbers here, there and in a Network.
troupe::Model sharded_model(const Config& config, bool bf16_parameters);

/// One rank. Its calls are collective: every rank makes them in the same order.
class ShardedTrainer {
 public:
  /// `corpus` outlives the trainer and was loaded for sequences of the same length.
  ShardedTrainer(troupe::World& world, const Options& options, const Corpus& corpus);

  /// Trains one step; returns the loss of all ranks, before the update, the same on every rank.
  double step();
  /// fp32 main weight of one parameter, put together from the shards of all ranks.
  std::vector<float> weight(size_t unit, size_t parameter);
  troupe::Report report() const { return runtime_.report(); }
  [[nodiscard]] int64_t step_count() const { return step_count_; }
  /// Writes a checkpoint of this step to `options.save`.
  void save();
  /// Goes on from `options.resume`.
  Resumed resume();

 private:
  void initialize();
  /// Computes this rank's gradients of one micro-batch; returns its loss.
  float micro_batch(int64_t index);
  /// Where the unit's weights are: in the use's gathered memory, or in scratch if widened.
  std::span<const float* const> weights_of(const troupe::Use& use, size_t unit);
  std::span<const GradientOut> gradients_of(const troupe::Use& use, size_t unit);
  double mean_loss() const;

  // Constant after construction.
  Options options_;
  std::vector<UnitSpec> specs_;
  // Observed.
  troupe::World& world_;
  const Corpus& corpus_;
  // Owned.
  troupe::Runtime runtime_;
  std::variant<troupe::AdamW, troupe::Sgd> optimizer_;
  Network network_;
  std::vector<uint8_t> tokens_, targets_;  // (batch, sequence)
  FloatBuffer widened_;                    // one unit's parameters in fp32, if they are bf16
  std::vector<const float*> weights_;      // of one call of the network
  std::vector<GradientOut> gradients_;
  std::vector<float> own_losses_;  // (micro_batches)
  std::vector<float> losses_;      // (ranks, micro_batches)
  int64_t step_count_ = 0;
  bool mixed_ = false;  // some steps were trained by other ranks
};

using Seconds = std::chrono::duration<double>;

/// One step, as the first rank of this process saw it.
struct StepRecord {
  double loss = 0;
  Seconds time{};
  int64_t number = 1;  // of the step, from 1
};

/// What the first rank of this process saw. The weights are rank 0's: other processes have none.
struct ShardedRun {
  std::vector<StepRecord>
      steps;  // from where it begins; ends early with the first loss that is not finite
  std::vector<troupe::Report> reports;  // of each rank, after the last step
  /// fp32 main weights by unit and parameter.
  std::vector<std::vector<std::vector<float>>> weights;
  /// Where it has begun, if not at the first step; and the weights there, if from then on nothing
  /// is as it would have been without a stop.
  std::optional<Resumed> resumed;
  std::vector<std::vector<std::vector<float>>> weights_resumed;
  int64_t saves = 0;
  bool stopped = false;  ///< by SIGTERM, before the last step
};

/// Trains `options.steps` steps with `options.strategy`: all ranks, on as many threads, or the one
/// that `options.join` says. Throws troupe::Error with the first failure of any rank.
/// on_step  called after each step, by the thread of this process's first rank
ShardedRun train_sharded(const Options& options,
                         const Corpus& corpus,
                         const std::function<void(const StepRecord&)>& on_step = {},
                         const troupe::WorldOptions& world_options = {});

}  // namespace gpt
