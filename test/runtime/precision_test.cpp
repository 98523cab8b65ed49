/// Dtypes chosen apart: parameters, full gradient buffers, what is sent, main gradients and main
/// weights. Every combination trains as a reference of its own does, bit for bit, under every
/// strategy; bytes are those of the dtypes.
#include "troupe/test/support/precision.hpp"

#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/toy_training.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <set>
#include <string>

namespace troupe::test {
namespace {

std::vector<ToyVariant> variants() {
  constexpr Strategy owner = Strategy::owner_broadcast;
  constexpr Strategy sliced = Strategy::sharded_optimizer;
  return {
      {"owner_broadcast", {.strategy = owner, .free_full_gradients = false}},
      {"owner_broadcast, fused", {.strategy = owner, .bucket_bytes = 160}},
      {"sharded_optimizer",
       {.strategy = sliced, .free_full_gradients = false, .bucket_bytes = 300}},
      {"sharded_optimizer, two replicas", {.strategy = sliced, .mesh = {.replicate = 2}}, 2},
      {"full_shard", {.free_full_gradients = false}},
      {"full_shard, shards of any size", {.alignment_numel = 1}},
      {"full_shard, two replicas summed at step end",
       {.mesh = {.replicate = 2}, .sum_replicas_at_step_end = true},
       2},
  };
}

/// No element, one, fewer than ranks; a weight that two units share, and a frozen one.
Model odd_model(DType dtype) {
  Model model = toy_model({{37, 5}, {0, 1}, {1, 29, 3}, {3}, {2, 0, 61}}, dtype);
  model.tie(4, "tied", 0, "p1");
  model.add_parameter(3, {.name = "frozen", .shape = {3, 5}, .dtype = dtype, .trainable = false});
  return model;
}

/// Micro-batches that do not write all they use; a unit that is used twice.
std::vector<StepProgram> programs(std::size_t units, bool accumulates) {
  StepProgram step = accumulating_step(units, accumulates ? "r--r-" : "rrr");
  for (Op& op : step[1]) {
    op.untouched = op.kind == Op::backward && op.unit == 0 ? 1U : 0U;
  }
  MicroBatchProgram& twice = step[2];
  const std::size_t first = twice.front().kind == Op::not_reduced ? 1 : 0;
  twice.insert(twice.begin() + static_cast<std::ptrdiff_t>(first), {Op::forward, 2});
  const auto backward = std::ranges::find_if(
      twice, [](const Op& op) { return op.kind == Op::backward && op.unit == 2; });
  twice.insert(backward, {Op::backward, 2});
  return {step, step};
}

TEST_CASE("every choice of dtypes equals a reference of its own bit for bit") {
  int rows = 0;
  std::set<ToyParameters> results;
  std::set<ToyParameters> narrow_weights;
  for (const Precision& precision : precisions()) {
    const Model model = odd_model(precision.parameters);
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const ToyVariant& variant : variants()) {
        if (ranks % variant.ranks_divisor != 0) {
          continue;
        }
        CAPTURE(text_of(precision));
        CAPTURE(std::string(variant.name));
        CAPTURE(ranks);
        const auto steps = programs(model.units().size(), !variant.options.free_full_gradients);
        const SumOrder order{.replicas = variant.options.mesh.replicate,
                             .at_step_end = variant.options.sum_replicas_at_step_end,
                             .once = is_agreed(variant.options),
                             .buffers = precision.buffers,
                             .wire = precision.wire,
                             .main_gradients = precision.main_gradients,
                             .main_weights = precision.main_weights};
        const ToyParameters expected =
            Reference(model, ranks, OptimizerKind::adamw, order).train(steps).parameters;
        Options options = with(precision, variant.options);
        options.overlap = rows % 3 != 0;
        const ToyParameters found = train_toy(model, options, ranks, steps);
        for (const auto& [name, values] : expected) {
          CHECK_MESSAGE(found.at(name) == values, name);
        }
        if (ranks == 3 && std::string(variant.name) == "full_shard") {
          (precision.main_weights == DType::f32 ? results : narrow_weights).insert(found);
        }
        ++rows;
      }
    }
  }
  // Each dtype makes a difference; rounded weights may hide one of gradients.
  CHECK(results.size() == 16);
  CHECK(narrow_weights.size() > 4);
  CHECK(std::ranges::none_of(narrow_weights,
                             [&](const ToyParameters& each) { return results.contains(each); }));
  MESSAGE(rows, " rows");
}

TEST_CASE("fp32 parameters beside bf16 ones keep main weights in fp32") {
  Model model = toy_model({{7}, {5}}, DType::bf16);
  model.add_parameter(0, {.name = "norm", .shape = {3}});
  const std::vector<StepProgram> steps(3, plain_step(2, 2));
  const SumOrder order{.main_weights = DType::bf16};
  for (const ToyVariant& variant : variants()) {
    if (variant.options.mesh.replicate > 1) {
      continue;
    }
    for (const int ranks : {1, 2, 3, 4, 7}) {
      CAPTURE(std::string(variant.name));
      CAPTURE(ranks);
      Options options = variant.options;
      options.main_weight_dtype = DType::bf16;
      const ToyParameters expected =
          Reference(model, ranks, OptimizerKind::adamw, order).train(steps).parameters;
      CHECK(train_toy(model, options, ranks, steps) == expected);
    }
  }
}

}  // namespace
}  // namespace troupe::test
