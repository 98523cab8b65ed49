// Tests of examples/gpt/reference.hpp.
#include "gpt_fixture.hpp"
#include <troupe/examples/gpt/reference.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

namespace gpt::test {

namespace {

constexpr Config small{.layers = 2, .width = 16, .heads = 2, .sequence = 8, .batch = 2};

/// A text of some regularity, long enough for many different batches.
Corpus corpus() {
  const TemporaryFolder folder("reference");
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "the " + std::to_string(i) + "th line of the text; ";
  }
  return std::get<Corpus>(Corpus::load(folder.write("text", text), small.sequence));
}

/// The initial weights as the trainer sees them, written again.
void fill_initial(const Tensors& weights, uint64_t seed) {
  const auto specs = units(small);
  for (size_t unit = 0; unit < specs.size(); ++unit) {
    for (size_t i = 0; i < specs[unit].parameters.size(); ++i) {
      const auto& parameter = specs[unit].parameters[i];
      initialize(parameter, full_name(specs[unit], parameter), seed, weights.at(unit, i));
    }
  }
}

/// Gradient and loss of one rank's micro-batch.
float compute(const Corpus& text,
              const Tensors& weights,
              int64_t micro_batch,
              int64_t rank,
              int64_t ranks,
              uint64_t seed,
              const Tensors& gradient) {
  Network network(small);
  std::vector<uint8_t> tokens(16);
  std::vector<uint8_t> targets(16);
  text.batch(0, micro_batch, rank, ranks, seed, tokens, targets);
  network.set_batch(tokens, targets);
  forward_all(network, weights);
  backward_all(network, weights, gradient);
  return network.loss();
}

bool same_weights(const ReferenceTrainer& a, const ReferenceTrainer& b) {
  for (size_t unit = 0; unit < a.specs().size(); ++unit) {
    for (size_t i = 0; i < a.specs()[unit].parameters.size(); ++i) {
      if (!equal_bits(a.weight(unit, i), b.weight(unit, i))) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

TEST_CASE("two ranks and two micro-batches equal a sum written by hand") {
  const Corpus text = corpus();
  ReferenceOptions options{.ranks = 2, .micro_batches = 2, .seed = 5};
  options.optimizer = {.kind = OptimizerOptions::Kind::sgd, .lr = 0.25F};
  ReferenceTrainer trainer(small, options, text);
  const double loss = trainer.step();

  const Tensors weights(small);
  fill_initial(weights, 5);
  const Tensors g00(small), g01(small), g10(small), g11(small);  // micro-batch, rank
  const auto loss00 = static_cast<double>(compute(text, weights, 0, 0, 2, 5, g00));
  const auto loss01 = static_cast<double>(compute(text, weights, 0, 1, 2, 5, g01));
  const auto loss10 = static_cast<double>(compute(text, weights, 1, 0, 2, 5, g10));
  const auto loss11 = static_cast<double>(compute(text, weights, 1, 1, 2, 5, g11));
  CHECK(loss == ((loss00 + loss01) + (loss10 + loss11)) / 4);
  for (size_t unit = 0; unit < weights.unit_count(); ++unit) {
    for (size_t i = 0; i < weights.count(unit); ++i) {
      CAPTURE(unit);
      CAPTURE(i);
      size_t wrong = 0;
      for (size_t k = 0; k < weights.at(unit, i).size(); ++k) {
        const auto at = [&](const Tensors& t) { return t.at(unit, i)[k]; };
        const float g = ((at(g00) + at(g01)) + (at(g10) + at(g11))) / 2.0F;
        const float p = at(weights) - 0.25F * g;
        wrong += trainer.gradient(unit, i)[k] == g && trainer.weight(unit, i)[k] == p ? 0U : 1U;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("three ranks are added in rank order and truly divided") {
  const Corpus text = corpus();
  ReferenceTrainer trainer(small, {.ranks = 3, .threads = 2, .seed = 6}, text);
  trainer.step();
  const Tensors weights(small);
  fill_initial(weights, 6);
  const Tensors g0(small), g1(small), g2(small);
  compute(text, weights, 0, 0, 3, 6, g0);
  compute(text, weights, 0, 1, 3, 6, g1);
  compute(text, weights, 0, 2, 3, 6, g2);
  size_t wrong = 0;
  size_t order_matters = 0;
  for (size_t k = 0; k < weights.at(1, block::wqkv).size(); ++k) {
    const auto at = [&](const Tensors& t) { return t.at(1, block::wqkv)[k]; };
    const float sum = (at(g0) + at(g1)) + at(g2);
    wrong += trainer.gradient(1, block::wqkv)[k] == sum / 3.0F ? 0U : 1U;
    order_matters += sum == at(g0) + (at(g1) + at(g2)) ? 0U : 1U;
  }
  CHECK(wrong == 0);
  CHECK(order_matters > 0);
}

TEST_CASE("the ranks of each replica are added first, then the replicas, in order") {
  const Corpus text = corpus();
  const Tensors weights(small);
  fill_initial(weights, 6);
  const Tensors g00(small), g01(small), g02(small), g03(small);  // micro-batch, rank
  const Tensors g10(small), g11(small), g12(small), g13(small);
  const Tensors* const gradients[2][4]{{&g00, &g01, &g02, &g03}, {&g10, &g11, &g12, &g13}};
  for (int64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
    for (int64_t rank = 0; rank < 4; ++rank) {
      compute(text, weights, micro_batch, rank, 4, 6, *gradients[micro_batch][rank]);
    }
  }
  for (const bool at_step_end : {false, true}) {
    CAPTURE(at_step_end);
    ReferenceTrainer trainer(
        small,
        {.ranks = 4, .micro_batches = 2, .replicas = 2, .sum_at_step_end = at_step_end, .seed = 6},
        text);
    trainer.step();
    size_t wrong = 0;
    size_t order_matters = 0;
    for (size_t k = 0; k < weights.at(1, block::wqkv).size(); ++k) {
      const auto at = [&](const Tensors& t) { return t.at(1, block::wqkv)[k]; };
      const float each_time =
          ((at(g00) + at(g01)) + (at(g02) + at(g03))) + ((at(g10) + at(g11)) + (at(g12) + at(g13)));
      const float once =
          ((at(g00) + at(g01)) + (at(g10) + at(g11))) + ((at(g02) + at(g03)) + (at(g12) + at(g13)));
      const float sum = at_step_end ? once : each_time;
      wrong += trainer.gradient(1, block::wqkv)[k] == sum / 4.0F ? 0U : 1U;
      order_matters += each_time == once ? 0U : 1U;
    }
    CHECK(wrong == 0);
    CHECK(order_matters > 0);
  }
}

TEST_CASE("the number of threads changes nothing") {
  const Corpus text = corpus();
  ReferenceOptions options{.ranks = 4, .micro_batches = 2, .seed = 1};
  ReferenceTrainer one(small, options, text);
  options.threads = 3;
  ReferenceTrainer three(small, options, text);
  for (int step = 0; step < 3; ++step) {
    CHECK(one.step() == three.step());
  }
  CHECK(same_weights(one, three));
  CHECK(three.step_count() == 3);
}

TEST_CASE("adamw follows the order of operations in the header") {
  const OptimizerOptions options{.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .weight_decay = 0.1F};
  constexpr size_t numel = 100;  // enough that any other order differs somewhere
  std::vector<float> p(numel), m(numel), v(numel), g(numel);
  for (size_t i = 0; i < numel; ++i) {
    p[i] = uniform(1, i);
  }
  auto expected_p = p;
  std::vector<float> expected_m(numel), expected_v(numel);
  for (int t = 1; t <= 5; ++t) {
    const auto c1 = static_cast<float>(1.0 - std::pow(static_cast<double>(0.9F), t));
    const auto c2 = static_cast<float>(1.0 - std::pow(static_cast<double>(0.95F), t));
    for (size_t i = 0; i < numel; ++i) {
      g[i] = i == 0 ? 0.0F : uniform(2 + static_cast<uint64_t>(t), i);
      expected_m[i] = 0.9F * expected_m[i] + (1.0F - 0.9F) * g[i];
      expected_v[i] = 0.95F * expected_v[i] + (1.0F - 0.95F) * (g[i] * g[i]);
      const float root = std::sqrt(expected_v[i] / c2) + 1e-8F;
      const float change = (expected_m[i] / c1) / root + 0.1F * expected_p[i];
      expected_p[i] = expected_p[i] - 0.01F * change;
    }
    optimizer_step(options, t, g, p, m, v);
    CHECK(m == expected_m);
    CHECK(v == expected_v);
    CHECK(p == expected_p);
  }
}

TEST_CASE("the first adamw step moves every weight by the learning rate") {
  // m_hat = g and sqrt(v_hat) = |g| up to rounding, whatever the size of g.
  const OptimizerOptions options{.lr = 0.125F, .weight_decay = 0};
  std::vector<float> p{1, 1, 1, 1}, m(4), v(4);
  optimizer_step(options, 1, std::vector<float>{1e-3F, -7, 0, 1000}, p, m, v);
  CHECK(p[0] == doctest::Approx(0.875).epsilon(1e-4));  // eps 1e-8 beside g 1e-3
  CHECK(p[1] == doctest::Approx(1.125).epsilon(1e-6));
  CHECK(p[2] == 1.0F);
  CHECK(p[3] == doctest::Approx(0.875).epsilon(1e-6));
}

TEST_CASE("rounding to bf16 is to nearest with ties to even") {
  const auto bits = [](uint32_t x) { return std::bit_cast<float>(x); };
  CHECK(round_to_bf16(1.0F) == 1.0F);
  CHECK(round_to_bf16(bits(0x3f807fff)) == bits(0x3f800000));  // below half: down
  CHECK(round_to_bf16(bits(0x3f808000)) == bits(0x3f800000));  // half, even below
  CHECK(round_to_bf16(bits(0x3f818000)) == bits(0x3f820000));  // half, even above
  CHECK(round_to_bf16(bits(0x3f808001)) == bits(0x3f810000));  // above half: up
  CHECK(round_to_bf16(-1.0F / 3) == bits(0xbeab0000));
  CHECK(round_to_bf16(bits(0x7f7fffff)) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(round_to_bf16(bits(0x7f800001))));
  CHECK(std::signbit(round_to_bf16(-0.0F)));
}

TEST_CASE("with bf16 parameters compute sees rounded weights and the main weights stay fp32") {
  const Corpus text = corpus();
  ReferenceOptions options{.seed = 2, .bf16_parameters = true};
  ReferenceTrainer trainer(small, options, text);
  const Tensors weights(small);
  fill_initial(weights, 2);
  CHECK(equal_bits(trainer.weight(1, block::wqkv), weights.at(1, block::wqkv)));
  for (size_t unit = 0; unit < weights.unit_count(); ++unit) {
    for (size_t i = 0; i < weights.count(unit); ++i) {
      for (float& x : weights.at(unit, i)) {
        x = round_to_bf16(x);
      }
    }
  }
  const Tensors gradient(small);
  const float loss = compute(text, weights, 0, 0, 1, 2, gradient);
  CHECK(trainer.step() == static_cast<double>(loss));
  CHECK(equal_bits(trainer.gradient(1, block::wqkv), gradient.at(1, block::wqkv)));
}

TEST_CASE("the loss falls from that of a uniform guess") {
  const Corpus text = corpus();
  for (const auto kind : {OptimizerOptions::Kind::sgd, OptimizerOptions::Kind::adamw}) {
    ReferenceOptions options{.ranks = 2, .threads = 2};
    options.optimizer.kind = kind;
    options.optimizer.lr = kind == OptimizerOptions::Kind::sgd ? 0.5F : 0.01F;
    ReferenceTrainer trainer(small, options, text);
    const double first = trainer.step();
    double last = first;
    for (int step = 0; step < 40; ++step) {
      last = trainer.step();
    }
    CHECK(first == doctest::Approx(std::log(256.0)).epsilon(0.02));
    CHECK(last < 4.0);
  }
}

TEST_CASE("options that make no sense are refused") {
  const Corpus text = corpus();
  CHECK_THROWS_AS(ReferenceTrainer(small, {.ranks = 0}, text), std::invalid_argument);
  CHECK_THROWS_AS(ReferenceTrainer(small, {.ranks = 3, .replicas = 2}, text),
                  std::invalid_argument);
  CHECK_THROWS_AS(ReferenceTrainer({.layers = 1, .sequence = 16}, {}, text), std::invalid_argument);
}

}  // namespace gpt::test
