/// Sharded optimizers: each rank updates its own shards, in fp32.
///
///     troupe::AdamW optimizer({.learning_rate = 3e-4F,
///                              .groups = {{.parameters = is_norm_or_bias, .weight_decay =
///                              0.0F}}});
///     optimizer.set_learning_rate(schedule(step));   // each step, if it changes
///     optimizer.step(runtime);
///
/// State lies in the runtime (`Runtime::state`, `Runtime::counts`) under the names given below, for
/// trainable parameters only. Several optimizers may share a runtime, each for its own parameters
/// (`groups_only`); in one update they cost no more communication than one:
///
///     troupe::Update update = runtime.update();
///     sgd.step(update);
///     adamw.step(update);
///
/// Thread rules: as Runtime's. Errors: `Error` (misuse) if the gradients are not finished;
/// (bad_configuration) at construction, of a group without a function.
/// The order of operations is part of the contract, so that another implementation can be equal bit
/// for bit; no multiplication and addition are fused.
#pragma once

#include "troupe/runtime/runtime.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace troupe {

/// Parameters with values of their own. A parameter belongs to the first group that wants it. The
/// same on every rank: each updates its part by itself.
struct ParameterGroup {
  std::function<bool(const Parameter&)> parameters;  ///< whether the group wants it
  std::optional<float> learning_rate{};              ///< not set: the optimizer's
  std::optional<float> weight_decay{};               ///< not set: the optimizer's
};

/// What the optimizers have in common.
class ShardedOptimizer {
 public:
  virtual ~ShardedOptimizer() = default;
  /// Updates every shard of its parameters, each bucket gathered again as soon as it is done.
  /// Collective.
  void step(Runtime& runtime);
  /// The same within an update that others may use, too; the update's end finishes the buckets.
  void step(Update& update);
  /// From the next step on; groups with a value of their own keep it.
  void set_learning_rate(float learning_rate) { learning_rate_ = learning_rate; }
  /// Of `groups[group]`. `Error` (misuse) if there is no such group.
  void set_learning_rate(std::size_t group, float learning_rate);

 protected:
  ShardedOptimizer(float learning_rate,
                   float weight_decay,
                   std::vector<ParameterGroup> groups,
                   bool groups_only);
  ShardedOptimizer(const ShardedOptimizer&) = default;
  ShardedOptimizer(ShardedOptimizer&&) = default;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = default;
  ShardedOptimizer& operator=(ShardedOptimizer&&) = default;

  /// The part of one parameter in this rank's shard of a bucket.
  struct Piece {
    BucketId bucket = 0;
    std::size_t offset = 0;  ///< in the shard, and in each state of the bucket
    std::size_t numel = 0;   ///< > 0
    std::uint64_t step = 1;  ///< updates of the parameter, this one included
    float learning_rate = 0;
    float weight_decay = 0;
    float* weights = nullptr;
    const float* gradients = nullptr;
  };
  virtual const char* name() const = 0;                 ///< "AdamW"
  virtual const char* steps() const = 0;                ///< in `Runtime::counts`
  virtual std::vector<const char*> states() const = 0;  ///< in `Runtime::state`
  virtual void update(Runtime& runtime, const Piece& piece) = 0;

 private:
  static constexpr std::size_t no_group = ~std::size_t{0};
  static constexpr std::size_t left_to_others = no_group - 1;

  void check_gradients(const Runtime& runtime) const;
  std::size_t group_of(const Parameter& parameter) const;
  std::vector<std::size_t> begin_step(Runtime& runtime) const;
  void update_shard(Update& update, BucketId bucket, const std::vector<std::size_t>& groups);

  float learning_rate_;
  float weight_decay_;
  std::vector<ParameterGroup> groups_;
  bool groups_only_;
};

struct SgdOptions {
  float learning_rate = 1e-2F;
  float momentum = 0.0F;
  bool nesterov = false;
  float weight_decay = 0.0F;  ///< added to the gradient
  std::vector<ParameterGroup> groups{};
  bool groups_only = false;  ///< leave parameters that are in no group to others
};

/// Per element, in fp32; without weight decay or momentum what they add is left out:
///
///     d = g + (weight_decay · p)
///     b = (momentum · b) + d            state "sgd.momentum"
///     d = nesterov ? d + (momentum · b) : b
///     p = p − (lr · d)
class Sgd final : public ShardedOptimizer {
 public:
  explicit Sgd(const SgdOptions& options = {});

 private:
  const char* name() const override { return "Sgd"; }
  const char* steps() const override { return "sgd.step"; }
  std::vector<const char*> states() const override;
  void update(Runtime& runtime, const Piece& piece) override;

  float momentum_;
  bool nesterov_;
};

struct AdamWOptions {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 0.01F;  ///< decoupled (Loshchilov & Hutter 2019)
  std::vector<ParameterGroup> groups{};
  bool groups_only = false;  ///< leave parameters that are in no group to others
};

/// Step t (from 1, of each parameter: one that is unfrozen later begins then), per element, in
/// fp32:
///
///     m = (beta1 · m) + ((1 − beta1) · g)           state "adamw.m"
///     v = (beta2 · v) + ((1 − beta2) · (g · g))     state "adamw.v"
///     p = p − lr · (((m / c1) / (√(v / c2) + epsilon)) + (weight_decay · p))
///
/// with c1 = 1 − beta1^t and c2 = 1 − beta2^t taken in fp64 and rounded once; t is the count
/// "adamw.step".
class AdamW final : public ShardedOptimizer {
 public:
  explicit AdamW(const AdamWOptions& options = {});

 private:
  const char* name() const override { return "AdamW"; }
  const char* steps() const override { return "adamw.step"; }
  std::vector<const char*> states() const override { return {"adamw.m", "adamw.v"}; }
  void update(Runtime& runtime, const Piece& piece) override;

  float beta1_;
  float beta2_;
  float epsilon_;
};

}  // namespace troupe
