/// Every strategy and variant trains as the unsharded reference does, bit for bit, with overlap and
/// without.
#include "troupe/test/support/toy_training.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

std::vector<ToyVariant> variants() {
  constexpr Strategy owner = Strategy::owner_broadcast;
  constexpr Strategy sliced = Strategy::sharded_optimizer;
  return {
      {"owner_broadcast", {.strategy = owner}},
      {"owner_broadcast, fused", {.strategy = owner, .bucket_bytes = 160}},
      {"owner_broadcast, gradients kept", {.strategy = owner, .free_full_gradients = false}},
      {"sharded_optimizer", {.strategy = sliced}},
      {"sharded_optimizer, large buckets", {.strategy = sliced, .bucket_bytes = 600}},
      {"sharded_optimizer, gradients kept",
       {.strategy = sliced, .free_full_gradients = false, .bucket_bytes = 300}},
      {"full_shard", {}},
      {"full_shard, not resharded", {.reshard_after_forward = false}},
      {"full_shard, one unit kept", {.keep_gathered = {"u4"}}},
      {"full_shard, gathered again among 2", {.regather_group_size = 2, .slots = 2}, 4},
      {"full_shard, two replicas", {.mesh = {.replicate = 2}}, 4},
      {"full_shard, two replicas summed at step end",
       {.mesh = {.replicate = 2}, .sum_replicas_at_step_end = true},
       4},
      {"sharded_optimizer, two replicas", {.strategy = sliced, .mesh = {.replicate = 2}}, 4},
  };
}

/// Those whose micro-batches need not reduce.
std::vector<ToyVariant> accumulating_variants() {
  constexpr Strategy sliced = Strategy::sharded_optimizer;
  const auto kept = [](Options options) {
    options.free_full_gradients = false;
    return options;
  };
  return {
      {"owner_broadcast", kept({.strategy = Strategy::owner_broadcast})},
      {"sharded_optimizer", kept({.strategy = sliced, .bucket_bytes = 300})},
      {"sharded_optimizer, two replicas", kept({.strategy = sliced, .mesh = {.replicate = 2}}), 2},
      {"full_shard", kept({})},
      {"full_shard, gathered again among 2", kept({.regather_group_size = 2, .slots = 2}), 4},
      {"full_shard, two replicas summed at step end",
       kept({.mesh = {.replicate = 2}, .sum_replicas_at_step_end = true}), 2},
  };
}

/// Sizes that divide by nothing, several parameters per unit, one element and none; a weight that
/// two units share, and a frozen one.
Model model_of(DType dtype) {
  Model model = toy_model({{37, 5}, {64}, {1, 29, 3}, {101}, {17, 17}, {2, 0, 61}}, dtype);
  model.tie(5, "tied", 0, "p1");
  model.add_parameter(3, {.name = "frozen", .shape = {3, 5}, .dtype = dtype, .trainable = false});
  return model;
}

TEST_CASE("every strategy equals the unsharded reference bit for bit, with overlap and without") {
  int rows = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Model model = model_of(dtype);
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const int micro_batches : {1, 3}) {
        const std::vector<StepProgram> steps(4, plain_step(model.units().size(), micro_batches));
        for (const ToyVariant& variant : variants()) {
          if (ranks % variant.ranks_divisor != 0) {
            continue;
          }
          CAPTURE(std::string(variant.name));
          CAPTURE(ranks);
          CAPTURE(micro_batches);
          CAPTURE(std::string(to_string(dtype)));
          const SumOrder order{variant.options.mesh.replicate,
                               variant.options.sum_replicas_at_step_end};
          const ToyParameters expected =
              Reference(model, ranks, OptimizerKind::adamw, order).train(steps).parameters;
          for (const bool overlap : {true, false}) {
            CAPTURE(overlap);
            Options options = variant.options;
            options.overlap = overlap;
            const ToyParameters found = train_toy(model, options, ranks, steps);
            for (const auto& [name, values] : expected) {
              CHECK_MESSAGE(found.at(name) == values, name);
            }
            ++rows;
          }
        }
      }
    }
  }
  MESSAGE(rows, " rows");
}

TEST_CASE("micro-batches that do not all reduce equal the unsharded reference bit for bit") {
  int rows = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Model model = model_of(dtype);
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const char* pattern : {"--r", "r-r-"}) {
        const std::vector<StepProgram> steps(3, accumulating_step(model.units().size(), pattern));
        for (const ToyVariant& variant : accumulating_variants()) {
          if (ranks % variant.ranks_divisor != 0) {
            continue;
          }
          CAPTURE(std::string(variant.name));
          CAPTURE(ranks);
          CAPTURE(std::string(pattern));
          CAPTURE(std::string(to_string(dtype)));
          const SumOrder order{variant.options.mesh.replicate,
                               variant.options.sum_replicas_at_step_end};
          const ToyParameters expected =
              Reference(model, ranks, OptimizerKind::adamw, order).train(steps).parameters;
          Options options = variant.options;
          options.overlap = rows % 2 == 0;
          CAPTURE(options.overlap);
          const ToyParameters found = train_toy(model, options, ranks, steps);
          for (const auto& [name, values] : expected) {
            CHECK_MESSAGE(found.at(name) == values, name);
          }
          ++rows;
        }
      }
    }
  }
  MESSAGE(rows, " rows");
}

}  // namespace
}  // namespace troupe::test
