#include "ops.hpp"

#include "vector_math.hpp"

#include <algorithm>
#include <cblas.h>
#include <cmath>

namespace gpt {

namespace {

// GELU(x) = x * s with s = 1 / (1 + exp(-2u)), which is 0.5 x (1 + tanh u) written with one
// exponential.
constexpr float gelu_two_scale = 1.5957691216057308F;  // 2 sqrt(2/pi)
constexpr float gelu_cubic = 0.044715F;

inline float gelu_gate(float x) {
  return 1.0F / (1.0F + exponential(-gelu_two_scale * (x + gelu_cubic * x * x * x)));
}

CBLAS_TRANSPOSE transpose(bool transposed) {
  return transposed ? CblasTrans : CblasNoTrans;
}

}  // namespace

void matrix_product(const Product& p) {
  cblas_sgemm(CblasRowMajor, transpose(p.a_transposed), transpose(p.b_transposed),
              static_cast<blasint>(p.m), static_cast<blasint>(p.n), static_cast<blasint>(p.k),
              p.alpha, p.a, static_cast<blasint>(p.a_stride), p.b, static_cast<blasint>(p.b_stride),
              p.beta, p.c, static_cast<blasint>(p.c_stride));
}

void use_one_blas_thread() {
  static const bool done = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

void linear(const float* x,
            const float* weight,
            const float* bias,
            int64_t n,
            int64_t in,
            int64_t out,
            float* y) {
  for (int64_t row = 0; row < n; ++row) {
    std::copy_n(bias, out, y + row * out);
  }
  matrix_product({.m = n,
                  .n = out,
                  .k = in,
                  .a = x,
                  .a_stride = in,
                  .b = weight,
                  .b_stride = in,
                  .b_transposed = true,
                  .beta = 1,
                  .c = y,
                  .c_stride = out});
}

void linear_backward_input(
    const float* dy, const float* weight, int64_t n, int64_t in, int64_t out, float* dx) {
  matrix_product({.m = n,
                  .n = in,
                  .k = out,
                  .a = dy,
                  .a_stride = out,
                  .b = weight,
                  .b_stride = in,
                  .c = dx,
                  .c_stride = in});
}

void linear_backward_weight(
    const float* dy, const float* x, int64_t n, int64_t in, int64_t out, float* dweight) {
  matrix_product({.m = out,
                  .n = in,
                  .k = n,
                  .a = dy,
                  .a_stride = out,
                  .a_transposed = true,
                  .b = x,
                  .b_stride = in,
                  .c = dweight,
                  .c_stride = in});
}

void sum_rows(const float* x, int64_t rows, int64_t columns, float* out) {
  std::copy_n(x, columns, out);
  for (int64_t row = 1; row < rows; ++row) {
    add(x + row * columns, columns, out);
  }
}

void add(const float* from, int64_t numel, float* to) {
  for (int64_t i = 0; i < numel; ++i) {
    to[i] += from[i];
  }
}

void layer_norm(const float* x,
                const float* gain,
                const float* bias,
                int64_t n,
                int64_t width,
                float* y,
                float* mean,
                float* rstd) {
  const auto numel = static_cast<float>(width);
  for (int64_t row = 0; row < n; ++row, x += width, y += width) {
    const float m = sum_in_lanes(width, [x](int64_t i) { return x[i]; }) / numel;
    const float variance =
        sum_in_lanes(width, [x, m](int64_t i) { return (x[i] - m) * (x[i] - m); }) / numel;
    const float r = 1.0F / std::sqrt(variance + 1e-5F);
    for (int64_t i = 0; i < width; ++i) {
      y[i] = (x[i] - m) * r * gain[i] + bias[i];
    }
    mean[row] = m;
    rstd[row] = r;
  }
}

void layer_norm_backward_input(const float* dy,
                               const float* x,
                               const float* gain,
                               const float* mean,
                               const float* rstd,
                               int64_t n,
                               int64_t width,
                               float* dx) {
  const auto numel = static_cast<float>(width);
  for (int64_t row = 0; row < n; ++row, dy += width, x += width, dx += width) {
    const float m = mean[row];
    const float r = rstd[row];
    // With g = dy * gain: dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)).
    const float g_mean =
        sum_in_lanes(width, [dy, gain](int64_t i) { return dy[i] * gain[i]; }) / numel;
    const float gx_mean =
        sum_in_lanes(width, [=](int64_t i) { return dy[i] * gain[i] * ((x[i] - m) * r); }) / numel;
    for (int64_t i = 0; i < width; ++i) {
      dx[i] += r * (dy[i] * gain[i] - g_mean - (x[i] - m) * r * gx_mean);
    }
  }
}

void layer_norm_backward_gain(const float* dy,
                              const float* x,
                              const float* mean,
                              const float* rstd,
                              int64_t n,
                              int64_t width,
                              float* dgain) {
  std::fill_n(dgain, width, 0.0F);
  for (int64_t row = 0; row < n; ++row, dy += width, x += width) {
    const float m = mean[row];
    const float r = rstd[row];
    for (int64_t i = 0; i < width; ++i) {
      dgain[i] += dy[i] * ((x[i] - m) * r);
    }
  }
}

void gelu(const float* x, int64_t numel, float* y) {
  for (int64_t i = 0; i < numel; ++i) {
    y[i] = x[i] * gelu_gate(x[i]);
  }
}

void gelu_backward(const float* x, int64_t numel, float* d) {
  for (int64_t i = 0; i < numel; ++i) {
    const float gate = gelu_gate(x[i]);
    const float slope = gelu_two_scale * (1.0F + 3.0F * gelu_cubic * x[i] * x[i]);
    d[i] *= gate + x[i] * gate * (1.0F - gate) * slope;
  }
}

float softmax(const float* from, int64_t numel, float* to) {
  const float largest = max_of(from, numel);
  for (int64_t i = 0; i < numel; ++i) {
    to[i] = exponential(from[i] - largest);
  }
  const float total = sum_in_lanes(numel, [to](int64_t i) { return to[i]; });
  const float inverse = 1.0F / total;
  for (int64_t i = 0; i < numel; ++i) {
    to[i] *= inverse;
  }
  return largest + std::log(total);
}

void softmax_cross_entropy(const float* logits,
                           std::span<const uint8_t> targets,
                           int64_t classes,
                           float* probabilities,
                           float* losses) {
  for (size_t n = 0; n < targets.size(); ++n, logits += classes, probabilities += classes) {
    losses[n] = softmax(logits, classes, probabilities) - logits[targets[n]];
  }
}

void softmax_cross_entropy_backward(const float* probabilities,
                                    std::span<const uint8_t> targets,
                                    int64_t classes,
                                    float* d_logits) {
  const float scale = 1.0F / static_cast<float>(targets.size());
  for (size_t n = 0; n < targets.size(); ++n, probabilities += classes, d_logits += classes) {
    for (int64_t i = 0; i < classes; ++i) {
      d_logits[i] = probabilities[i] * scale;
    }
    d_logits[targets[n]] -= scale;
  }
}

}  // namespace gpt
