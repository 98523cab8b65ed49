// Causal self-attention of ops.hpp.
#include "ops.hpp"
#include "vector_math.hpp"

#include <algorithm>
#include <cmath>

namespace gpt {

namespace {

/// Where one head of one sequence lies in qkv (N, 3W), and its part of (N, W) and (B, H, T, T).
struct HeadView {
  int64_t q, k, v;
  int64_t out;
  int64_t probabilities;
};

template <class Visit>
void for_each_head(int64_t batch, int64_t sequence, int64_t width, int64_t heads, Visit visit) {
  const int64_t head_width = width / heads;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t q = b * sequence * 3 * width + h * head_width;
      visit(HeadView{.q = q,
                     .k = q + width,
                     .v = q + 2 * width,
                     .out = b * sequence * width + h * head_width,
                     .probabilities = (b * heads + h) * sequence * sequence});
    }
  }
}

float score_scale(int64_t width, int64_t heads) {
  const int64_t head_width = width / heads;
  return 1.0F / std::sqrt(static_cast<float>(head_width));
}

}  // namespace

void attention(const float* qkv,
               int64_t batch,
               int64_t sequence,
               int64_t width,
               int64_t heads,
               float* probabilities,
               float* out) {
  const int64_t head_width = width / heads;
  for_each_head(batch, sequence, width, heads, [&](const HeadView& view) {
    float* p = probabilities + view.probabilities;
    // scores (T, T) = q k^T / sqrt(W/H)
    matrix_product({.m = sequence,
                    .n = sequence,
                    .k = head_width,
                    .alpha = score_scale(width, heads),
                    .a = qkv + view.q,
                    .a_stride = 3 * width,
                    .b = qkv + view.k,
                    .b_stride = 3 * width,
                    .b_transposed = true,
                    .c = p,
                    .c_stride = sequence});
    for (int64_t t = 0; t < sequence; ++t) {
      float* row = p + t * sequence;
      softmax(row, t + 1, row);
      std::fill_n(row + t + 1, sequence - t - 1, 0.0F);
    }
    // out (T, W/H) = probabilities v
    matrix_product({.m = sequence,
                    .n = head_width,
                    .k = sequence,
                    .a = p,
                    .a_stride = sequence,
                    .b = qkv + view.v,
                    .b_stride = 3 * width,
                    .c = out + view.out,
                    .c_stride = width});
  });
}

void attention_backward(const float* d_out,
                        const float* qkv,
                        const float* probabilities,
                        int64_t batch,
                        int64_t sequence,
                        int64_t width,
                        int64_t heads,
                        float* d_scores,
                        float* d_qkv) {
  const int64_t head_width = width / heads;
  const float scale = score_scale(width, heads);
  for_each_head(batch, sequence, width, heads, [&](const HeadView& view) {
    const float* p = probabilities + view.probabilities;
    // d_probabilities (T, T) = d_out v^T, turned into d_scores in place below
    matrix_product({.m = sequence,
                    .n = sequence,
                    .k = head_width,
                    .a = d_out + view.out,
                    .a_stride = width,
                    .b = qkv + view.v,
                    .b_stride = 3 * width,
                    .b_transposed = true,
                    .c = d_scores,
                    .c_stride = sequence});
    // d_v (T, W/H) = probabilities^T d_out
    matrix_product({.m = sequence,
                    .n = head_width,
                    .k = sequence,
                    .a = p,
                    .a_stride = sequence,
                    .a_transposed = true,
                    .b = d_out + view.out,
                    .b_stride = width,
                    .c = d_qkv + view.v,
                    .c_stride = 3 * width});
    for (int64_t t = 0; t < sequence; ++t) {
      const float* row = p + t * sequence;
      float* d = d_scores + t * sequence;
      const float dot = sum_in_lanes(t + 1, [row, d](int64_t i) { return row[i] * d[i]; });
      for (int64_t i = 0; i <= t; ++i) {
        d[i] = row[i] * (d[i] - dot);
      }
      std::fill_n(d + t + 1, sequence - t - 1, 0.0F);
    }
    // d_q (T, W/H) = d_scores k * scale
    matrix_product({.m = sequence,
                    .n = head_width,
                    .k = sequence,
                    .alpha = scale,
                    .a = d_scores,
                    .a_stride = sequence,
                    .b = qkv + view.k,
                    .b_stride = 3 * width,
                    .c = d_qkv + view.q,
                    .c_stride = 3 * width});
    // d_k (T, W/H) = d_scores^T q * scale
    matrix_product({.m = sequence,
                    .n = head_width,
                    .k = sequence,
                    .alpha = scale,
                    .a = d_scores,
                    .a_stride = sequence,
                    .a_transposed = true,
                    .b = qkv + view.q,
                    .b_stride = 3 * width,
                    .c = d_qkv + view.k,
                    .c_stride = 3 * width});
  });
}

}  // namespace gpt
