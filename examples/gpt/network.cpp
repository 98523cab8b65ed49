#include "network.hpp"

#include "ops.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace gpt {

namespace {

Config validated(const Config& config) {
  if (const auto error = validate(config)) {
    throw std::invalid_argument(*error);
  }
  return config;
}

int64_t token_count(const Config& config) {
  return config.batch * config.sequence;
}

}  // namespace

Network::BlockActivations::BlockActivations(const Config& config)
    : ln1(token_count(config) * config.width),
      ln1_mean(token_count(config)),
      ln1_rstd(token_count(config)),
      qkv(token_count(config) * 3 * config.width),
      probabilities(config.batch * config.heads * config.sequence * config.sequence),
      attention(token_count(config) * config.width),
      residual(token_count(config) * config.width),
      ln2(token_count(config) * config.width),
      ln2_mean(token_count(config)),
      ln2_rstd(token_count(config)),
      up(token_count(config) * 4 * config.width),
      up_gelu(token_count(config) * 4 * config.width) {}

Network::Network(const Config& config)
    : config_(validated(config)),
      specs_(units(config)),
      n_(token_count(config)),
      forward_done_(specs_.size()),
      backward_done_(specs_.size()),
      tokens_(static_cast<size_t>(n_)),
      targets_(static_cast<size_t>(n_)),
      lnf_(n_ * config.width),
      lnf_mean_(n_),
      lnf_rstd_(n_),
      logits_(n_ * vocabulary),
      vocabulary_probabilities_(n_ * vocabulary),
      token_losses_(n_),
      d_residual_(n_ * config.width),
      d_narrow_(n_ * config.width),
      d_wide_(n_ * 4 * config.width),
      d_scores_(config.sequence * config.sequence),
      d_logits_(n_ * vocabulary),
      gradient_scratch_(numel_max(specs_)) {
  use_one_blas_thread();
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    residuals_.emplace_back(n_ * config.width);
    blocks_.emplace_back(config);
  }
  residuals_.emplace_back(n_ * config.width);
}

void Network::set_batch(std::span<const uint8_t> tokens, std::span<const uint8_t> targets) {
  if (tokens.size() != tokens_.size() || targets.size() != targets_.size()) {
    throw std::logic_error("set_batch: " + std::to_string(tokens.size()) + " tokens and " +
                           std::to_string(targets.size()) + " targets, expected " +
                           std::to_string(tokens_.size()));
  }
  std::ranges::copy(tokens, tokens_.begin());
  std::ranges::copy(targets, targets_.begin());
}

void Network::forward(size_t unit, std::span<const float* const> weights) {
  check_call("forward", unit, weights.size(), unit == 0 || unit == forward_done_ + 1);
  if (unit == 0) {
    forward_embed(weights);
  } else if (unit + 1 < specs_.size()) {
    forward_block(unit - 1, weights);
  } else {
    forward_head(weights);
  }
  forward_done_ = unit;
  backward_done_ = specs_.size();
}

void Network::backward(size_t unit,
                       std::span<const float* const> weights,
                       std::span<const GradientOut> gradients) {
  check_call("backward", unit, std::min(weights.size(), gradients.size()),
             forward_done_ + 1 == specs_.size() && unit + 1 == backward_done_);
  if (unit == 0) {
    backward_embed(gradients);
  } else if (unit + 1 < specs_.size()) {
    backward_block(unit - 1, weights, gradients);
  } else {
    backward_head(weights, gradients);
  }
  backward_done_ = unit;
}

float Network::loss() const {
  double total = 0;
  for (const float loss : token_losses_.span()) {
    total += static_cast<double>(loss);
  }
  return static_cast<float>(total / static_cast<double>(n_));
}

void Network::check_call(const char* pass, size_t unit, size_t weight_count, bool in_order) const {
  if (unit >= specs_.size()) {
    throw std::logic_error(std::string(pass) + " of unit " + std::to_string(unit) + ", there are " +
                           std::to_string(specs_.size()));
  }
  const UnitSpec& spec = specs_[unit];
  if (weight_count != spec.parameters.size()) {
    throw std::logic_error(std::string(pass) + " of " + spec.name + " with " +
                           std::to_string(weight_count) + " pointers, expected " +
                           std::to_string(spec.parameters.size()));
  }
  if (!in_order) {
    throw std::logic_error(std::string(pass) + " of " + spec.name + " out of order");
  }
}

template <class Compute>
void Network::write_gradient(const GradientOut& out, int64_t numel, Compute compute) {
  if (!out.accumulate) {
    compute(out.data);
    return;
  }
  // Not by beta = 1 of the product: that adds in another order than computing and then adding.
  compute(gradient_scratch_.data());
  add(gradient_scratch_.data(), numel, out.data);
}

void Network::forward_embed(std::span<const float* const> weights) {
  const int64_t w = config_.width;
  float* residual = residuals_[0].data();
  for (int64_t n = 0; n < n_; ++n, residual += w) {
    const float* tok = weights[embed::tok] + tokens_[static_cast<size_t>(n)] * w;
    std::copy_n(tok, w, residual);
    add(weights[embed::pos] + n % config_.sequence * w, w, residual);
  }
}

void Network::forward_block(size_t layer, std::span<const float* const> weights) {
  using namespace block;
  const int64_t w = config_.width;
  BlockActivations& a = blocks_[layer];
  const float* input = residuals_[layer].data();
  float* output = residuals_[layer + 1].data();

  layer_norm(input, weights[ln1_g], weights[ln1_b], n_, w, a.ln1.data(), a.ln1_mean.data(),
             a.ln1_rstd.data());
  linear(a.ln1.data(), weights[wqkv], weights[bqkv], n_, w, 3 * w, a.qkv.data());
  attention(a.qkv.data(), config_.batch, config_.sequence, w, config_.heads, a.probabilities.data(),
            a.attention.data());
  linear(a.attention.data(), weights[wo], weights[bo], n_, w, w, a.residual.data());
  add(input, n_ * w, a.residual.data());

  layer_norm(a.residual.data(), weights[ln2_g], weights[ln2_b], n_, w, a.ln2.data(),
             a.ln2_mean.data(), a.ln2_rstd.data());
  linear(a.ln2.data(), weights[w_up], weights[b_up], n_, w, 4 * w, a.up.data());
  gelu(a.up.data(), n_ * 4 * w, a.up_gelu.data());
  linear(a.up_gelu.data(), weights[w_down], weights[b_down], n_, 4 * w, w, output);
  add(a.residual.data(), n_ * w, output);
}

void Network::forward_head(std::span<const float* const> weights) {
  const int64_t w = config_.width;
  layer_norm(residuals_.back().data(), weights[head::lnf_g], weights[head::lnf_b], n_, w,
             lnf_.data(), lnf_mean_.data(), lnf_rstd_.data());
  matrix_product({.m = n_,
                  .n = vocabulary,
                  .k = w,
                  .a = lnf_.data(),
                  .a_stride = w,
                  .b = weights[head::w_out],
                  .b_stride = w,
                  .b_transposed = true,
                  .c = logits_.data(),
                  .c_stride = vocabulary});
  softmax_cross_entropy(logits_.data(), targets_, vocabulary, vocabulary_probabilities_.data(),
                        token_losses_.data());
}

void Network::backward_head(std::span<const float* const> weights,
                            std::span<const GradientOut> gradients) {
  const int64_t w = config_.width;
  const float* input = residuals_.back().data();
  const float* d_logits = d_logits_.data();
  const float* d_lnf = d_narrow_.data();
  softmax_cross_entropy_backward(vocabulary_probabilities_.data(), targets_, vocabulary,
                                 d_logits_.data());
  write_gradient(gradients[head::w_out], vocabulary * w, [&](float* out) {
    linear_backward_weight(d_logits, lnf_.data(), n_, w, vocabulary, out);
  });
  linear_backward_input(d_logits, weights[head::w_out], n_, w, vocabulary, d_narrow_.data());
  write_gradient(gradients[head::lnf_g], w, [&](float* out) {
    layer_norm_backward_gain(d_lnf, input, lnf_mean_.data(), lnf_rstd_.data(), n_, w, out);
  });
  write_gradient(gradients[head::lnf_b], w, [&](float* out) { sum_rows(d_lnf, n_, w, out); });
  std::ranges::fill(d_residual_.span(), 0.0F);
  layer_norm_backward_input(d_lnf, input, weights[head::lnf_g], lnf_mean_.data(), lnf_rstd_.data(),
                            n_, w, d_residual_.data());
}

void Network::backward_block(size_t layer,
                             std::span<const float* const> weights,
                             std::span<const GradientOut> gradients) {
  using namespace block;
  const int64_t w = config_.width;
  const BlockActivations& a = blocks_[layer];
  float* d_residual = d_residual_.data();  // (N, W): of the output, at the end of the input
  float* d_narrow = d_narrow_.data();
  float* d_wide = d_wide_.data();

  const auto weight_gradient = [&](Parameter p, const float* dy, const float* x, int64_t in,
                                   int64_t out) {
    write_gradient(gradients[p], out * in,
                   [&](float* to) { linear_backward_weight(dy, x, n_, in, out, to); });
  };
  const auto bias_gradient = [&](Parameter p, const float* dy, int64_t out) {
    write_gradient(gradients[p], out, [&](float* to) { sum_rows(dy, n_, out, to); });
  };
  const auto norm_backward = [&](Parameter gain, Parameter bias, const float* x,
                                 const FloatBuffer& mean, const FloatBuffer& rstd) {
    write_gradient(gradients[gain], w, [&](float* to) {
      layer_norm_backward_gain(d_narrow, x, mean.data(), rstd.data(), n_, w, to);
    });
    bias_gradient(bias, d_narrow, w);
    layer_norm_backward_input(d_narrow, x, weights[gain], mean.data(), rstd.data(), n_, w,
                              d_residual);
  };

  // output = residual + down(gelu(up(ln2(residual))))
  weight_gradient(w_down, d_residual, a.up_gelu.data(), 4 * w, w);
  bias_gradient(b_down, d_residual, w);
  linear_backward_input(d_residual, weights[w_down], n_, 4 * w, w, d_wide);
  gelu_backward(a.up.data(), n_ * 4 * w, d_wide);
  weight_gradient(w_up, d_wide, a.ln2.data(), w, 4 * w);
  bias_gradient(b_up, d_wide, 4 * w);
  linear_backward_input(d_wide, weights[w_up], n_, w, 4 * w, d_narrow);
  norm_backward(ln2_g, ln2_b, a.residual.data(), a.ln2_mean, a.ln2_rstd);

  // residual = input + wo(attention(wqkv(ln1(input))))
  weight_gradient(wo, d_residual, a.attention.data(), w, w);
  bias_gradient(bo, d_residual, w);
  linear_backward_input(d_residual, weights[wo], n_, w, w, d_narrow);
  attention_backward(d_narrow, a.qkv.data(), a.probabilities.data(), config_.batch,
                     config_.sequence, w, config_.heads, d_scores_.data(), d_wide);
  weight_gradient(wqkv, d_wide, a.ln1.data(), w, 3 * w);
  bias_gradient(bqkv, d_wide, 3 * w);
  linear_backward_input(d_wide, weights[wqkv], n_, w, 3 * w, d_narrow);
  norm_backward(ln1_g, ln1_b, residuals_[layer].data(), a.ln1_mean, a.ln1_rstd);
}

void Network::backward_embed(std::span<const GradientOut> gradients) {
  const int64_t w = config_.width;
  const int64_t row_count = config_.sequence;
  write_gradient(gradients[embed::tok], vocabulary * w, [&](float* out) {
    std::fill_n(out, vocabulary * w, 0.0F);
    for (int64_t n = 0; n < n_; ++n) {
      add(d_residual_.data() + n * w, w, out + tokens_[static_cast<size_t>(n)] * w);
    }
  });
  // The sequences of the batch are rows of one matrix (B, T W).
  write_gradient(gradients[embed::pos], row_count * w, [&](float* out) {
    sum_rows(d_residual_.data(), config_.batch, row_count * w, out);
  });
}

}  // namespace gpt
