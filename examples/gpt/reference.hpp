// The unsharded trainer: what sharded training must equal, bit by bit, written as plainly as can
// be. Owns the fp32 parameters, gradients, optimizer state and one Network per simulated rank;
// observes the corpus. One thread calls it; it starts and joins its own threads inside step().
//
// [Note: order of operations]
// One step, every operation rounded to fp32 unless stated otherwise, for every element alone:
//   1. per micro-batch, per rank r: g_r, the gradient of that rank's mean loss (Network, overwrite)
//   2. per micro-batch: s = ((g_0 + g_1) + g_2) + ...                 in rank order
//      With several replicas of the sharded model, each the next ranks / replicas ranks: the ranks
//      of each replica by themselves so, then the replicas' sums in order.
//   3. main grad: G = s of micro-batch 0; then G = G + s of micro-batch 1, 2, ...
//      With sum_at_step_end each replica has such a G of its own sums; the last of them added, the
//      replicas' G are added in order.
//      A micro-batch's loss is not divided by the number of micro-batches.
//   4. g = G / float(ranks), a division, also when ranks is 1
//   5. optimizer, with step number t counted from 1:
//      sgd    p = p - lr * g
//      adamw  m     = beta1 * m + (1 - beta1) * g
//             v     = beta2 * v + (1 - beta2) * (g * g)
//             m_hat = m / c1, v_hat = v / c2
//             p     = p - lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * p)
//      with (1 - beta) computed in fp32, and c1 = float(1 - std::pow(double(beta1), double(t))), c2
//      likewise, computed in double once per step. m and v begin at 0. No multiply-add is fused.
//      All parameters decay, biases and gains too.
//   6. with bf16_parameters, every step, the first too, computes with p rounded to bf16 (nearest,
//      ties to even) and widened again; p itself, gradients, m and v stay fp32.
// The loss of a step is the mean of the fp32 losses, summed in fp64: ranks in order within a
// micro-batch, micro-batches in order, then one division by (ranks * micro_batches).
// Source of adamw: Loshchilov, Hutter 2019, algorithm 2.
#pragma once

#include "buffer.hpp"
#include "corpus.hpp"
#include "model.hpp"
#include "network.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gpt {

struct OptimizerOptions {
  enum class Kind : uint8_t { sgd, adamw };

  Kind kind = Kind::adamw;
  float lr = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float eps = 1e-8F;
  float weight_decay = 0.1F;
};

/// Updates p, m, v (numel each) from g by [Note: order of operations], 5; step from 1. sgd does not
/// use m and v.
void optimizer_step(const OptimizerOptions& options,
                    int64_t step,
                    std::span<const float> g,
                    std::span<float> p,
                    std::span<float> m,
                    std::span<float> v);

/// `x` rounded to bf16, to nearest with ties to even, and widened again; NaN stays NaN.
float round_to_bf16(float x);

struct ReferenceOptions {
  int64_t ranks = 1;
  int64_t micro_batches = 1;     // per step
  int64_t threads = 1;           // that compute ranks; changes time only, not results
  int64_t replicas = 1;          // of the sharded model, whose sums are added; divides ranks
  bool sum_at_step_end = false;  // the replicas' sums
  uint64_t seed = 0;             // of initial values and of data
  bool bf16_parameters = false;
  OptimizerOptions optimizer = {};
};

class ReferenceTrainer {
 public:
  /// `config` is valid and fits the corpus (same sequence), the counts in `options` are at least 1;
  /// std::invalid_argument otherwise. `corpus` outlives the trainer.
  ReferenceTrainer(const Config& config, const ReferenceOptions& options, const Corpus& corpus);

  /// Trains one step; returns its loss, before the update.
  double step();
  /// Steps done so far.
  [[nodiscard]] int64_t step_count() const { return step_count_; }

  [[nodiscard]] std::span<const UnitSpec> specs() const { return specs_; }
  /// fp32 main weight (numel) of one parameter.
  [[nodiscard]] std::span<const float> weight(size_t unit, size_t parameter) const;
  /// The last step's gradient (numel), divided by the ranks, as the optimizer saw it.
  [[nodiscard]] std::span<const float> gradient(size_t unit, size_t parameter) const;

 private:
  /// One simulated rank: its network, batch and gradient.
  struct Rank {
    Rank(const Config& config, int64_t numel);

    Network network;
    std::vector<uint8_t> tokens, targets;  // (batch, sequence)
    FloatBuffer gradient;                  // (flat)
    float loss = 0;
  };
  /// Place of one parameter in the flat buffers; begins on a cache line.
  struct Place {
    int64_t offset;
    int64_t numel;
  };

  /// The step's gradients of all ranks into `main_grad_`; returns the sum of losses.
  double sum_gradients();
  /// Those of one replica's ranks into `sum`.
  void sum_replica(int64_t replica, FloatBuffer& sum);
  void compute_micro_batch(int64_t micro_batch);
  void compute_rank(int64_t rank, int64_t micro_batch);
  void update_compute_weights();
  [[nodiscard]] std::vector<const float*> weight_pointers(size_t unit) const;

  // Constant after construction.
  ReferenceOptions options_;
  std::vector<UnitSpec> specs_;
  std::vector<std::vector<Place>> places_;  // by unit and parameter
  // Observed.
  const Corpus& corpus_;
  // Owned, all of the same flat size: every parameter, padded with zeros to whole cache lines.
  FloatBuffer weights_, compute_weights_;  // compute_weights_: as rounded, if bf16_parameters
  FloatBuffer main_grad_, micro_batch_grad_, replica_grad_;
  std::vector<FloatBuffer> replica_main_grads_;  // of replicas 1 and up, if sum_at_step_end
  FloatBuffer m_, v_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int64_t step_count_ = 0;
};

}  // namespace gpt
