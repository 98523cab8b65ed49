// Tests of examples/gpt/network.hpp except the values of gradients (gpt_gradient_test.cpp).
#include "gpt_fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <thread>

namespace gpt::test {

namespace {

constexpr Config small{.layers = 2, .width = 16, .heads = 2, .sequence = 6, .batch = 2};

/// A network with weights and gradients in memory `shift` cache lines apart from another's.
struct Instance {
  explicit Instance(const Config& config, size_t shift = 0)
      : network(config), weights(config, shift), gradients(config, shift) {
    fill_lively(config, weights);
    set_batch(1);
  }

  void set_batch(uint64_t seed) {
    const Batch batch = random_batch(network.config(), seed);
    network.set_batch(batch.tokens, batch.targets);
  }
  void step() {
    forward_all(network, weights);
    backward_all(network, weights, gradients);
  }
  [[nodiscard]] bool equals(const Instance& other) const {
    if (!equal_bits(network.logits(), other.network.logits()) ||
        !equal_bits(network.token_losses(), other.network.token_losses())) {
      return false;
    }
    for (size_t unit = 0; unit < gradients.unit_count(); ++unit) {
      for (size_t i = 0; i < gradients.count(unit); ++i) {
        if (!equal_bits(gradients.at(unit, i), other.gradients.at(unit, i))) {
          return false;
        }
      }
    }
    return true;
  }

  Network network;
  Tensors weights, gradients;
};

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("results are the same bits in any thread and at any cache line") {
  // One layer at the default sizes, so that the products are those of a real run.
  for (const Config& config : {small, Config{.layers = 1}}) {
    Instance expected(config);
    expected.step();
    std::vector<std::unique_ptr<Instance>> instances;
    for (const size_t shift : {0U, 1U, 3U, 7U}) {
      instances.push_back(std::make_unique<Instance>(config, shift));
    }
    std::vector<std::thread> threads;
    threads.reserve(instances.size());
    for (const auto& instance : instances) {
      threads.emplace_back([&instance] {
        // A batch in between must leave nothing behind.
        instance->set_batch(2);
        instance->step();
        instance->set_batch(1);
        instance->step();
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const auto& instance : instances) {
      CHECK(instance->equals(expected));
    }
  }
}

TEST_CASE("weights may move between forward and backward") {
  Instance expected(small);
  expected.step();
  Instance moved(small);
  forward_all(moved.network, moved.weights);
  const Tensors elsewhere(small, 5);
  fill_lively(small, elsewhere);
  moved.weights.fill([](uint64_t, size_t) { return -1.0F; });
  backward_all(moved.network, elsewhere, moved.gradients);
  CHECK(moved.equals(expected));
}

TEST_CASE("a later token changes no earlier logit or loss") {
  Instance a(small);
  Instance b(small);
  constexpr size_t changed = 4;
  Batch batch = random_batch(small, 1);
  for (const size_t row : {0U, 1U}) {
    batch.tokens[row * 6 + changed] ^= 1U;
  }
  b.network.set_batch(batch.tokens, batch.targets);
  forward_all(a.network, a.weights);
  forward_all(b.network, b.weights);
  for (size_t n = 0; n < 12; ++n) {
    CAPTURE(n);
    const bool earlier = n % 6 < changed;
    CHECK(equal_bits(a.network.logits().subspan(n * 256, 256),
                     b.network.logits().subspan(n * 256, 256)) == earlier);
    CHECK((a.network.token_losses()[n] == b.network.token_losses()[n]) == earlier);
  }
}

TEST_CASE("sequences of a batch do not see each other") {
  Instance a(small);
  Instance b(small);
  Batch batch = random_batch(small, 1);
  std::fill_n(batch.tokens.begin(), 6, uint8_t{'x'});
  b.network.set_batch(batch.tokens, batch.targets);
  forward_all(a.network, a.weights);
  forward_all(b.network, b.weights);
  constexpr size_t numel = 6UL * 256;  // logits of one sequence
  CHECK(!equal_bits(a.network.logits().first(numel), b.network.logits().first(numel)));
  CHECK(equal_bits(a.network.logits().last(numel), b.network.logits().last(numel)));
}

TEST_CASE("the loss is the mean of the tokens' losses") {
  Instance a(small);
  forward_all(a.network, a.weights);
  double total = 0;
  for (const float loss : a.network.token_losses()) {
    total += static_cast<double>(loss);
  }
  CHECK(a.network.loss() == static_cast<float>(total / 12));
}

TEST_CASE("accumulating adds once to what was there, overwriting forgets it") {
  Instance a(small);
  a.step();
  const Tensors sums(small);
  const auto before = [](uint64_t stream, size_t k) { return uniform(stream, k); };
  sums.fill(before);
  forward_all(a.network, a.weights);
  backward_all(a.network, a.weights, sums, true);
  for (size_t unit = 0; unit < sums.unit_count(); ++unit) {
    for (size_t i = 0; i < sums.count(unit); ++i) {
      CAPTURE(unit);
      CAPTURE(i);
      size_t wrong = 0;
      for (size_t k = 0; k < sums.at(unit, i).size(); ++k) {
        const float expected = before(mix(unit, i), k) + a.gradients.at(unit, i)[k];
        wrong += sums.at(unit, i)[k] == expected ? 0U : 1U;
      }
      CHECK(wrong == 0);
    }
  }
  sums.fill([](uint64_t, size_t) { return std::numeric_limits<float>::quiet_NaN(); });
  forward_all(a.network, a.weights);
  backward_all(a.network, a.weights, sums, false);
  CHECK(equal_bits(sums.at(0, 0), a.gradients.at(0, 0)));
  CHECK(equal_bits(sums.at(1, block::wqkv), a.gradients.at(1, block::wqkv)));
}

TEST_CASE("a call out of order names the unit") {
  Instance a(small);
  const auto forward = [&](size_t unit) {
    return message_of([&] { a.network.forward(unit, a.weights.pointers(unit)); });
  };
  const auto backward = [&](size_t unit) {
    return message_of(
        [&] { a.network.backward(unit, a.weights.pointers(unit), a.gradients.outs(unit, false)); });
  };
  CHECK(forward(1) == "forward of block.0 out of order");
  CHECK(forward(0).empty());
  CHECK(forward(2) == "forward of block.1 out of order");
  CHECK(backward(3) == "backward of head out of order");
  CHECK(forward(1).empty());
  CHECK(forward(2).empty());
  CHECK(forward(3).empty());
  CHECK(backward(2) == "backward of block.1 out of order");
  CHECK(backward(3).empty());
  CHECK(backward(3) == "backward of head out of order");
  CHECK(backward(2).empty());
  // A new step may begin at any point.
  CHECK(forward(0).empty());
  CHECK(message_of([&] { a.network.forward(1, a.weights.pointers(0)); }) ==
        "forward of block.0 with 2 pointers, expected 12");
  CHECK(message_of([&] { a.network.forward(4, a.weights.pointers(0)); }) ==
        "forward of unit 4, there are 4");
  CHECK(message_of([&] { a.network.set_batch({}, {}); }) ==
        "set_batch: 0 tokens and 0 targets, expected 12");
}

}  // namespace gpt::test
