// Every gradient against differences of the loss.
//
// [Note: tolerance]
// D(h) = (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h along a direction of length 1, h = 2^-7.
// Truncation: h^4 / 30 times the fifth derivative, 1e-10 times 1e5 at most (measured with larger h;
// the first layer norm divides by small numbers). Rounding: each of 12 token losses near 7 is off
// by about 1e-6 through the fp32 forward pass; their mean, in double, by 3e-7; D by 1.5 * 3e-7 / h
// = 6e-5. Measured: at most 5e-5. Bound: 2e-4 and 1e-3 of the value. The gradients' lengths here
// are 0.09 to 1.9, so a missing term or factor is far outside.
#include "gpt_fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace gpt::test {

namespace {

constexpr Config config{.layers = 2, .width = 16, .heads = 2, .sequence = 6, .batch = 2};
constexpr double h = 0x1p-7;

class GradientCheck {
 public:
  GradientCheck() : network_(config), weights_(config), gradients_(config) {
    fill_lively(config, weights_);
    const Batch batch = random_batch(config, 1);
    network_.set_batch(batch.tokens, batch.targets);
    forward_all(network_, weights_);
    backward_all(network_, weights_, gradients_);
  }

  [[nodiscard]] std::vector<double> gradient(size_t unit, size_t parameter) const {
    const auto g = gradients_.at(unit, parameter);
    return {g.begin(), g.end()};
  }

  /// Derivative of the loss by differences, along `direction` (numel) scaled to length 1.
  double difference(size_t unit, size_t parameter, const std::vector<double>& direction) {
    const auto weight = weights_.at(unit, parameter);
    const std::vector<float> before(weight.begin(), weight.end());
    const auto loss_at = [&](double step) {
      for (size_t k = 0; k < weight.size(); ++k) {
        weight[k] = static_cast<float>(static_cast<double>(before[k]) + step * direction[k]);
      }
      forward_all(network_, weights_);
      double total = 0;
      for (const float loss : network_.token_losses()) {
        total += static_cast<double>(loss);
      }
      return total / static_cast<double>(network_.token_losses().size());
    };
    const double d =
        (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
    std::ranges::copy(before, weight.begin());
    return d;
  }

 private:
  Network network_;
  Tensors weights_, gradients_;
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    sum += a[k] * b[k];
  }
  return sum;
}

void scale_to_one(std::vector<double>& direction) {
  const double length = std::sqrt(dot(direction, direction));
  for (double& x : direction) {
    x /= length;
  }
}

}  // namespace

TEST_CASE("every parameter's gradient agrees with differences of the loss") {
  GradientCheck check;
  const auto specs = units(config);
  for (size_t unit = 0; unit < specs.size(); ++unit) {
    for (size_t i = 0; i < specs[unit].parameters.size(); ++i) {
      CAPTURE(full_name(specs[unit], specs[unit].parameters[i]));
      const auto gradient = check.gradient(unit, i);
      const auto compare = [&](std::vector<double> direction) {
        scale_to_one(direction);
        const double expected = check.difference(unit, i, direction);
        const double error = std::abs(dot(gradient, direction) - expected);
        CHECK(error <= 2e-4 + 1e-3 * std::abs(expected));
      };
      // Along the gradient: its length is right, which it is only if every element is.
      CHECK(std::sqrt(dot(gradient, gradient)) > 0.02);
      compare(gradient);
      // Along three random directions: elements that should be large and are zero.
      for (uint64_t seed = 0; seed < 3; ++seed) {
        std::vector<double> direction(gradient.size());
        for (size_t k = 0; k < direction.size(); ++k) {
          direction[k] = mix(seed, k) % 2 == 0 ? 1 : -1;
        }
        compare(direction);
      }
      // Along two single elements: the largest one and one anywhere.
      const auto largest =
          std::ranges::max_element(gradient, {}, [](double x) { return std::abs(x); });
      for (const auto k : {static_cast<size_t>(largest - gradient.begin()),
                           static_cast<size_t>(mix(unit, i) % gradient.size())}) {
        std::vector<double> direction(gradient.size());
        direction[k] = 1;
        compare(direction);
      }
    }
  }
}

}  // namespace gpt::test
