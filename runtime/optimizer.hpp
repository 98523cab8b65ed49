/// Sharded optimizers: each rank updates its own shards, in fp32.
///
/// Thread rules: as Runtime's. Errors: `Error` (misuse) if the gradients are not finished.
/// The order of operations is part of the contract, so that another implementation can be equal bit
/// for bit; no multiplication and addition are fused.
#pragma once

#include "troupe/runtime/runtime.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace troupe {

struct SgdOptions {
  float learning_rate = 1e-2F;
};

/// p = p − (lr · g)
class Sgd {
 public:
  explicit Sgd(SgdOptions options = {}) : options_(options) {}
  /// Updates every trainable shard. Collective.
  void step(Runtime& runtime);
  void set_learning_rate(float learning_rate) { options_.learning_rate = learning_rate; }

 private:
  SgdOptions options_;
};

struct AdamWOptions {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 0.01F;  ///< decoupled (Loshchilov & Hutter 2019)
};

/// Step t (from 1), per element, in fp32:
///
///     m = (beta1 · m) + ((1 − beta1) · g)
///     v = (beta2 · v) + ((1 − beta2) · (g · g))
///     p = p − lr · (((m / c1) / (√(v / c2) + epsilon)) + (weight_decay · p))
///
/// with c1 = 1 − beta1^t and c2 = 1 − beta2^t taken in fp64 and rounded once.
class AdamW {
 public:
  explicit AdamW(AdamWOptions options = {}) : options_(options) {}
  /// The first step allocates m and v beside the shards and binds the optimizer to `runtime`.
  void step(Runtime& runtime);
  void set_learning_rate(float learning_rate) { options_.learning_rate = learning_rate; }

 private:
  /// (shard_numel) each; the runtime's memory.
  struct State {
    std::span<float> m;
    std::span<float> v;
  };

  AdamWOptions options_;
  std::optional<std::weak_ptr<const RuntimeImpl>> runtime_;  ///< that holds the state
  std::vector<State> states_;                                ///< per bucket; empty for frozen ones
  std::uint64_t steps_ = 0;
};

}  // namespace troupe
