// Tests of examples/gpt/ops.hpp against the same formulas in double.
// Tolerances: every operation below adds a few roundings of 2^-24 = 6e-8 relative to its largest
// term; 1e-5 leaves room for sums of up to some tens of terms and is far below any wrong formula.
#include "gpt_fixture.hpp"
#include <troupe/examples/gpt/ops.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace gpt::test {

namespace {

constexpr double tolerance = 1e-5;

std::vector<float> random_values(uint64_t seed, size_t numel, float scale = 1) {
  std::vector<float> out(numel);
  for (size_t i = 0; i < numel; ++i) {
    out[i] = scale * uniform(seed, i);
  }
  return out;
}

double wide(float x) {
  return static_cast<double>(x);
}

bool near(float value, double expected) {
  return std::abs(wide(value) - expected) <= tolerance * std::max(1.0, std::abs(expected));
}

}  // namespace

TEST_CASE("gelu is the tanh form, from very negative to very positive") {
  const std::vector<float> x{-1e4F, -30, -10, -4, -1, -0.01F, 0, 1e-6F, 0.5F, 1, 3, 10, 100, 1e4F};
  std::vector<float> y(x.size());
  std::vector<float> d(x.size(), 1.0F);
  gelu(x.data(), static_cast<int64_t>(x.size()), y.data());
  gelu_backward(x.data(), static_cast<int64_t>(x.size()), d.data());
  for (size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i]);
    const double v = wide(x[i]);
    const double c = std::sqrt(2 / std::numbers::pi);
    const double tanh = std::tanh(c * (v + 0.044715 * v * v * v));
    CHECK(near(y[i], 0.5 * v * (1 + tanh)));
    CHECK(near(d[i],
               0.5 * (1 + tanh) + 0.5 * v * (1 - tanh * tanh) * c * (1 + 3 * 0.044715 * v * v)));
  }
}

TEST_CASE("the exponential is within 2 ulp, seen through the softmax of two scores") {
  for (int i = 0; i <= 4000; ++i) {
    const float x = -static_cast<float>(i) / 64.0F;  // 0 to -62.5
    const std::vector<float> scores{0, x};
    const std::vector<uint8_t> targets{0};
    std::vector<float> p(2);
    float loss = 0;
    softmax_cross_entropy(scores.data(), targets, 2, p.data(), &loss);
    // p[1] = e^x * (1 / (1 + e^x)): 2 ulp, and half of one for each of three more roundings.
    const double e = std::exp(wide(x));
    const double expected = e / (1 + e);
    CAPTURE(x);
    REQUIRE(std::abs(wide(p[1]) - expected) <= 3.5 * 0x1p-23 * expected);
  }
}

TEST_CASE("layer norm normalises each row") {
  for (const int64_t width : {1, 2, 15, 16, 17, 48}) {
    const int64_t n = 3;
    const auto size = static_cast<size_t>(n * width);
    const auto x = random_values(1, size, 3);
    const auto gain = random_values(2, static_cast<size_t>(width));
    const auto bias = random_values(3, static_cast<size_t>(width));
    std::vector<float> y(size);
    std::vector<float> mean(3);
    std::vector<float> rstd(3);
    layer_norm(x.data(), gain.data(), bias.data(), n, width, y.data(), mean.data(), rstd.data());
    for (size_t row = 0; row < 3; ++row) {
      const auto w = static_cast<size_t>(width);
      double m = 0;
      double variance = 0;
      for (size_t i = 0; i < w; ++i) {
        m += wide(x[row * w + i]) / static_cast<double>(width);
      }
      for (size_t i = 0; i < w; ++i) {
        variance += std::pow(wide(x[row * w + i]) - m, 2) / static_cast<double>(width);
      }
      for (size_t i = 0; i < w; ++i) {
        const double x_hat = (wide(x[row * w + i]) - m) / std::sqrt(variance + 1e-5);
        CHECK(near(y[row * w + i], x_hat * wide(gain[i]) + wide(bias[i])));
      }
    }
  }
}

TEST_CASE("attention is the causal softmax of scaled scores") {
  const size_t batch = 2;
  const size_t sequence = 19;
  const size_t width = 12;
  const size_t heads = 3;
  const size_t d = width / heads;
  const auto qkv = random_values(4, batch * sequence * 3 * width, 2);
  std::vector<float> p(batch * heads * sequence * sequence);
  std::vector<float> out(batch * sequence * width);
  attention(qkv.data(), batch, sequence, width, heads, p.data(), out.data());
  const auto part = [&](size_t b, size_t t, size_t which, size_t h, size_t i) {
    return wide(qkv[(b * sequence + t) * 3 * width + which * width + h * d + i]);
  };
  for (size_t b = 0; b < batch; ++b) {
    for (size_t h = 0; h < heads; ++h) {
      for (size_t t = 0; t < sequence; ++t) {
        std::vector<double> weight(t + 1);
        double total = 0;
        for (size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (size_t i = 0; i < d; ++i) {
            score += part(b, t, 0, h, i) * part(b, s, 1, h, i);
          }
          weight[s] = std::exp(score / std::sqrt(static_cast<double>(d)));
          total += weight[s];
        }
        for (size_t i = 0; i < d; ++i) {
          double expected = 0;
          for (size_t s = 0; s <= t; ++s) {
            expected += weight[s] / total * part(b, s, 2, h, i);
          }
          CHECK(near(out[(b * sequence + t) * width + h * d + i], expected));
        }
      }
    }
  }
}

TEST_CASE("cross entropy of equal logits is the logarithm of their number") {
  const std::vector<float> logits(512, -3.0F);
  const std::vector<uint8_t> targets{0, 255};
  std::vector<float> p(logits.size());
  std::vector<float> losses(2);
  std::vector<float> d(logits.size());
  softmax_cross_entropy(logits.data(), targets, 256, p.data(), losses.data());
  softmax_cross_entropy_backward(p.data(), targets, 256, d.data());
  CHECK(near(losses[0], std::log(256.0)));
  CHECK(losses[0] == losses[1]);
  CHECK(d[0] == (1.0F / 256 - 1) / 2);
  CHECK(d[1] == 1.0F / 512);
}

TEST_CASE("not a number in a score is not hidden by the softmax") {
  const std::vector<float> logits{0, std::numeric_limits<float>::quiet_NaN(), 1};
  const std::vector<uint8_t> targets{0};
  std::vector<float> p(3);
  float loss = 0;
  softmax_cross_entropy(logits.data(), targets, 3, p.data(), &loss);
  CHECK(std::isnan(loss));
}

}  // namespace gpt::test
