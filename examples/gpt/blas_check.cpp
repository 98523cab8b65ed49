#include "blas_check.hpp"

#include "hash.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <vector>

namespace gpt {

namespace {

/// A product without its operands, as a Network asks for it.
struct Case {
  const char* name;
  Product shape;
};

std::vector<Case> cases(const Config& config) {
  const int64_t n = config.batch * config.sequence;
  const int64_t t = config.sequence;
  const int64_t w = config.width;
  const int64_t d = config.width / config.heads;
  std::vector<Case> all;
  // Linear layers x (n, in) to y (n, out): qkv, attention output, up, down, head.
  const auto add_linear = [&](int64_t in, int64_t out, float beta) {
    all.push_back({"linear",
                   {.m = n,
                    .n = out,
                    .k = in,
                    .a_stride = in,
                    .b_stride = in,
                    .b_transposed = true,
                    .beta = beta,
                    .c_stride = out}});
    all.push_back({"linear, gradient of the input",
                   {.m = n, .n = in, .k = out, .a_stride = out, .b_stride = in, .c_stride = in}});
    all.push_back({"linear, gradient of the weight",
                   {.m = out,
                    .n = in,
                    .k = n,
                    .a_stride = out,
                    .a_transposed = true,
                    .b_stride = in,
                    .c_stride = in}});
  };
  add_linear(w, 3 * w, 1);
  add_linear(w, w, 1);
  add_linear(w, 4 * w, 1);
  add_linear(4 * w, w, 1);
  add_linear(w, vocabulary, 0);
  // 0.5 keeps integers exact, as any power of two does.
  all.push_back({"attention, scores",
                 {.m = t,
                  .n = t,
                  .k = d,
                  .alpha = 0.5F,
                  .a_stride = 3 * w,
                  .b_stride = 3 * w,
                  .b_transposed = true,
                  .c_stride = t}});
  all.push_back({"attention, output",
                 {.m = t, .n = d, .k = t, .a_stride = t, .b_stride = 3 * w, .c_stride = w}});
  all.push_back({"attention, gradient of the probabilities",
                 {.m = t,
                  .n = t,
                  .k = d,
                  .a_stride = w,
                  .b_stride = 3 * w,
                  .b_transposed = true,
                  .c_stride = t}});
  all.push_back({"attention, gradient of the query",
                 {.m = t,
                  .n = d,
                  .k = t,
                  .alpha = 0.5F,
                  .a_stride = t,
                  .b_stride = 3 * w,
                  .c_stride = 3 * w}});
  all.push_back({"attention, gradient of the key",
                 {.m = t,
                  .n = d,
                  .k = t,
                  .alpha = 0.5F,
                  .a_stride = t,
                  .a_transposed = true,
                  .b_stride = 3 * w,
                  .c_stride = 3 * w}});
  return all;
}

enum class Values : uint8_t { integers, random };

/// numel values that depend on `stream` alone: integers in [-4, 4] or reals in [-1, 1).
std::vector<float> values(Values kind, uint64_t stream, int64_t numel) {
  std::vector<float> out(static_cast<size_t>(numel));
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t bits = mix(stream, i) >> 40U;  // 24 bits, exact in a float
    out[i] = kind == Values::integers ? static_cast<float>(bits % 9) - 4.0F
                                      : static_cast<float>(bits) * 0x1p-23F - 1.0F;
  }
  return out;
}

/// op(X) (rows, columns) without strides, in double.
std::vector<double> dense(
    const std::vector<float>& x, int64_t stride, bool transposed, int64_t rows, int64_t columns) {
  std::vector<double> out;
  out.reserve(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = transposed ? j * stride + i : i * stride + j;
      out.push_back(static_cast<double>(x[static_cast<size_t>(at)]));
    }
  }
  return out;
}

/// Runs one case; a message when an element is wrong.
std::optional<std::string> check(const Case& one, Values kind, ProductFunction product) {
  Product p = one.shape;
  const auto a = values(kind, 1, (p.a_transposed ? p.k : p.m) * p.a_stride);
  const auto b = values(kind, 2, (p.b_transposed ? p.n : p.k) * p.b_stride);
  const auto before = values(kind, 3, p.m * p.c_stride);
  auto c = before;
  p.a = a.data();
  p.b = b.data();
  p.c = c.data();
  product(p);

  const auto a_dense = dense(a, p.a_stride, p.a_transposed, p.m, p.k);
  const auto b_dense = dense(b, p.b_stride, p.b_transposed, p.k, p.n);
  std::vector<double> row(static_cast<size_t>(p.n));        // sum of a * b
  std::vector<double> magnitude(static_cast<size_t>(p.n));  // sum of |a * b|
  const auto alpha = static_cast<double>(p.alpha);
  const auto beta = static_cast<double>(p.beta);
  for (int64_t i = 0; i < p.m; ++i) {
    row.assign(row.size(), 0);
    magnitude.assign(row.size(), 0);
    for (int64_t k = 0; k < p.k; ++k) {
      const double factor = a_dense[static_cast<size_t>(i * p.k + k)];
      const double* b_row = b_dense.data() + k * p.n;
      for (size_t j = 0; j < row.size(); ++j) {
        row[j] += factor * b_row[j];
      }
      for (size_t j = 0; kind == Values::random && j < row.size(); ++j) {
        magnitude[j] += std::abs(factor * b_row[j]);
      }
    }
    for (size_t j = 0; j < row.size(); ++j) {
      const size_t at = static_cast<size_t>(i * p.c_stride) + j;
      const auto old = static_cast<double>(before[at]);
      const double expected = alpha * row[j] + beta * old;
      // Integers: |sum| <= 16 k + 4, exact in fp32 below 2^24, so every order gives the same.
      // Random: (k + 2) u (sum |a b| + |c|) bounds the rounding of any order of summation, with or
      // without fused multiply-add, u = 2^-24 (Higham 2002, section 3.1).
      const double bound = kind == Values::integers
                               ? 0
                               : static_cast<double>(p.k + 2) * 0x1p-24 *
                                     (std::abs(alpha) * magnitude[j] + std::abs(beta * old));
      if (!(std::abs(static_cast<double>(c[at]) - expected) <= bound)) {
        std::ostringstream text;
        text.precision(std::numeric_limits<float>::max_digits10);
        text << "the BLAS library multiplies matrices wrongly on this processor: " << one.name
             << " (" << p.m << ", " << p.k << ") x (" << p.k << ", " << p.n << "), element (" << i
             << ", " << j << ") is " << c[at] << ", expected " << expected
             << "; install another build of OpenBLAS or set OPENBLAS_CORETYPE=Haswell";
        return text.str();
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> check_blas(const Config& config, ProductFunction product) {
  use_one_blas_thread();
  for (const Case& one : cases(config)) {
    for (const Values kind : {Values::integers, Values::random}) {
      if (auto error = check(one, kind, product)) {
        return error;
      }
    }
  }
  return std::nullopt;
}

}  // namespace gpt
