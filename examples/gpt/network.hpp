// One rank's forward and backward pass through the GPT, unit by unit, with weights given per call.
// Owns the activations and scratch of one rank, all allocated in the constructor; a step allocates
// nothing. One thread at a time uses a Network; different Networks run concurrently.
// Guarantees: results depend on tokens, targets and weights alone, bit by bit (ops.hpp,
// [Note: determinism]). Fails only when called out of order or with the wrong number of pointers:
// std::logic_error that names the unit.
//
// A step: set_batch; forward(0) .. forward(last); loss; backward(last) .. backward(0). A step may
// be abandoned at any point by starting the next with forward(0).
#pragma once

#include "buffer.hpp"
#include "model.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpt {

/// Where the gradient of one parameter goes.
struct GradientOut {
  float* data = nullptr;    // (numel of the parameter)
  bool accumulate = false;  // data = data + gradient, one fp32 addition per element; else overwrite
};

class Network {
 public:
  /// `config` is valid (gpt::validate); std::invalid_argument otherwise.
  explicit Network(const Config& config);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  Network(Network&&) = delete;
  Network& operator=(Network&&) = delete;
  ~Network() = default;

  [[nodiscard]] const Config& config() const { return config_; }
  /// Units are numbered 0 (embed), 1 .. layers (blocks), layers + 1 (head).
  [[nodiscard]] size_t unit_count() const { return specs_.size(); }

  /// tokens, targets: (batch, sequence), copied; targets[i] is the byte that follows tokens[i].
  void set_batch(std::span<const uint8_t> tokens, std::span<const uint8_t> targets);

  /// weights: one pointer per parameter, in the UnitSpec's order; not kept after the call.
  void forward(size_t unit, std::span<const float* const> weights);

  /// Mean cross entropy of the batch in nats; valid after the head's forward.
  [[nodiscard]] float loss() const;
  /// losses (batch, sequence) in nats; valid after the head's forward.
  [[nodiscard]] std::span<const float> token_losses() const { return token_losses_.span(); }
  /// logits (batch, sequence, 256); valid after the head's forward.
  [[nodiscard]] std::span<const float> logits() const { return logits_.span(); }

  /// Gradient of loss() for every parameter of the unit. The weights have the values of the
  /// forward call, at any address.
  void backward(size_t unit,
                std::span<const float* const> weights,
                std::span<const GradientOut> gradients);

 private:
  /// What the backward pass of a block needs of its forward pass.
  struct BlockActivations {
    explicit BlockActivations(const Config& config);

    FloatBuffer ln1, ln1_mean, ln1_rstd;  // (N, W), (N), (N)
    FloatBuffer qkv;                      // (N, 3W)
    FloatBuffer probabilities;            // (B, H, T, T)
    FloatBuffer attention;                // (N, W)
    FloatBuffer residual;                 // (N, W): after the attention half
    FloatBuffer ln2, ln2_mean, ln2_rstd;  // (N, W), (N), (N)
    FloatBuffer up, up_gelu;              // (N, 4W) each
  };

  void forward_embed(std::span<const float* const> weights);
  void forward_block(size_t layer, std::span<const float* const> weights);
  void forward_head(std::span<const float* const> weights);
  void backward_head(std::span<const float* const> weights, std::span<const GradientOut> gradients);
  void backward_block(size_t layer,
                      std::span<const float* const> weights,
                      std::span<const GradientOut> gradients);
  void backward_embed(std::span<const GradientOut> gradients);

  void check_call(const char* pass, size_t unit, size_t weight_count, bool in_order) const;
  /// Lets `compute` write a gradient to its place, or to scratch and adds that.
  template <class Compute>
  void write_gradient(const GradientOut& out, int64_t numel, Compute compute);

  // Constant after construction.
  Config config_;
  std::vector<UnitSpec> specs_;
  int64_t n_;  // tokens, N

  // The step's place: the unit that ran last in each direction.
  size_t forward_done_;   // unit_count() before the first
  size_t backward_done_;  // unit_count() before the first of this forward pass

  // Activations, owned.
  std::vector<uint8_t> tokens_, targets_;  // (N)
  std::vector<FloatBuffer> residuals_;     // layers + 1 of (N, W): input of each block and head
  std::vector<BlockActivations> blocks_;   // layers
  FloatBuffer lnf_, lnf_mean_, lnf_rstd_;  // (N, W), (N), (N)
  FloatBuffer logits_, vocabulary_probabilities_;  // (N, 256)
  FloatBuffer token_losses_;                       // (N)

  // Scratch of the backward pass, owned.
  FloatBuffer d_residual_;        // (N, W): handed from unit to unit
  FloatBuffer d_narrow_;          // (N, W)
  FloatBuffer d_wide_;            // (N, 4W), also (N, 3W)
  FloatBuffer d_scores_;          // (T, T)
  FloatBuffer d_logits_;          // (N, 256)
  FloatBuffer gradient_scratch_;  // (numel of the largest parameter)
};

}  // namespace gpt
