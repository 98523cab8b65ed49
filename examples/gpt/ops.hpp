// The mathematics of the layers, one function per operation, forward and backward.
// Pure functions on row-major fp32 memory of the caller; no allocation, no state, any thread.
//
// Letters in shapes: N tokens (batch x sequence), B batch, T sequence, W width, H heads.
//
// [Note: determinism]
// Every result depends on the inputs' values alone, bit by bit. Sums run in a fixed order: over
// rows one after the other, along a row in 16 interleaved partial sums that are then added as a
// tree. Compilers may vectorise that without changing the order, whatever the alignment. The
// exponential is ours, not the C library's: a loop over it vectorises, and its results do not
// change with the library's version. Matrix products are OpenBLAS's with one thread: its kernels
// copy operands into panels or read them unaligned, so addresses do not matter there either
// (gpt_network_test.cpp).
#pragma once

#include <cstdint>
#include <span>

namespace gpt {

/// C (m, n) = alpha * op(A) (m, k) * op(B) (k, n) + beta * C; op is the transpose where asked.
/// A row of the stored matrix begins `stride` floats after the one before. With beta 0, C is not
/// read. C overlaps neither A nor B. All sizes and strides are below 2^31.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1;
  const float* a = nullptr;
  int64_t a_stride = 0;
  bool a_transposed = false;
  const float* b = nullptr;
  int64_t b_stride = 0;
  bool b_transposed = false;
  float beta = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
};

/// Through cblas_sgemm.
void matrix_product(const Product& product);

/// Tells OpenBLAS to compute in the calling thread; ranks are what runs concurrently here. Applies
/// to the whole process. Call before the first product; later calls do nothing.
void use_one_blas_thread();

/// y (N, out) = x (N, in) * weight (out, in)^T + bias (out)
void linear(const float* x,
            const float* weight,
            const float* bias,
            int64_t n,
            int64_t in,
            int64_t out,
            float* y);
/// dx (N, in) = dy (N, out) * weight (out, in)
void linear_backward_input(
    const float* dy, const float* weight, int64_t n, int64_t in, int64_t out, float* dx);
/// dweight (out, in) = dy (N, out)^T * x (N, in)
void linear_backward_weight(
    const float* dy, const float* x, int64_t n, int64_t in, int64_t out, float* dweight);

/// out (columns) = sum over the rows of x (rows, columns), in their order.
void sum_rows(const float* x, int64_t rows, int64_t columns, float* out);

/// to[i] = to[i] + from[i]
void add(const float* from, int64_t numel, float* to);

/// y (N, W) = x_hat * gain (W) + bias (W) with x_hat = (x - mean) * rstd over each row of x (N, W).
/// mean (N), rstd (N): kept for the backward pass.
/// Source: Ba, Kiros, Hinton 2016; epsilon 1e-5 inside the root as in GPT-2.
void layer_norm(const float* x,
                const float* gain,
                const float* bias,
                int64_t n,
                int64_t width,
                float* y,
                float* mean,
                float* rstd);
/// dx (N, W) += gradient through the normalisation. (The bias's gradient is sum_rows of dy.)
void layer_norm_backward_input(const float* dy,
                               const float* x,
                               const float* gain,
                               const float* mean,
                               const float* rstd,
                               int64_t n,
                               int64_t width,
                               float* dx);
/// dgain (W) = sum over rows of dy * x_hat
void layer_norm_backward_gain(const float* dy,
                              const float* x,
                              const float* mean,
                              const float* rstd,
                              int64_t n,
                              int64_t width,
                              float* dgain);

/// y = GELU(x), tanh form (Hendrycks, Gimpel 2016), written with one exponential:
/// x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3)
void gelu(const float* x, int64_t numel, float* y);
/// d = d * GELU'(x), in place
void gelu_backward(const float* x, int64_t numel, float* d);

/// Causal self-attention of every (sequence, head); head h is columns [h W/H, (h+1) W/H).
/// qkv            (N, 3W): query, key, value of each token side by side
/// probabilities  (B, H, T, T): kept for the backward pass, 0 above the diagonal
/// out            (N, W)
void attention(const float* qkv,
               int64_t batch,
               int64_t sequence,
               int64_t width,
               int64_t heads,
               float* probabilities,
               float* out);
/// d_qkv (N, 3W) from d_out (N, W); d_scores (T, T) is scratch.
void attention_backward(const float* d_out,
                        const float* qkv,
                        const float* probabilities,
                        int64_t batch,
                        int64_t sequence,
                        int64_t width,
                        int64_t heads,
                        float* d_scores,
                        float* d_qkv);

/// to (numel) = softmax of from (numel); `to` may be `from`. Returns log of the sum of
/// exp(from[i]).
float softmax(const float* from, int64_t numel, float* to);

/// Per token, probabilities (N, V) = softmax of logits (N, V); losses (N) = -log of the target's.
void softmax_cross_entropy(const float* logits,
                           std::span<const uint8_t> targets,
                           int64_t classes,
                           float* probabilities,
                           float* losses);
/// d_logits (N, V) of the mean loss over the N tokens.
void softmax_cross_entropy_backward(const float* probabilities,
                                    std::span<const uint8_t> targets,
                                    int64_t classes,
                                    float* d_logits);

}  // namespace gpt
