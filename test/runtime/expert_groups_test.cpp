/// Parameters of experts: buckets, sums and divisor of their own, a value for each expert, in
/// groups of any size under every strategy. What tokens are routed to whom never changes the
/// launches.
#include "troupe/test/support/strategy_random.hpp"

#include <doctest/doctest.h>

#include <set>

namespace troupe::test {
namespace {

/// Units with experts alone, beside others, of one element, of none; a weight that two units of
/// experts share, a frozen one.
Model model_with_experts(DType dtype) {
  Model model = toy_model({{37, 5}, {}, {29}, {}, {17, 1}}, dtype);
  const auto add = [&](UnitId unit, const char* name, std::int64_t numel, bool trainable = true) {
    model.add_parameter(unit, {.name = name,
                               .shape = {numel},
                               .dtype = dtype,
                               .trainable = trainable,
                               .group = std::string(expert_group)});
  };
  add(1, "w1", 45);
  add(1, "w2", 3);
  add(1, "none", 0);
  add(2, "gate", 1);
  add(3, "w1", 64);
  add(3, "frozen", 11, false);
  model.tie(3, "shared", 1, "w2");
  return model;
}

std::vector<Options> strategies_by_options(int ranks) {
  std::vector<Options> all{
      {.strategy = Strategy::owner_broadcast},
      {.strategy = Strategy::owner_broadcast, .bucket_bytes = 400},
      {.strategy = Strategy::sharded_optimizer},
      {.strategy = Strategy::sharded_optimizer, .free_full_gradients = false, .bucket_bytes = 300},
      {},
      {.reshard_after_forward = false},
      {.overlap = false},
  };
  if (ranks % 2 == 0) {
    all.push_back({.regather_group_size = 2});
  }
  if (ranks == 4) {
    for (const Strategy strategy : {Strategy::sharded_optimizer, Strategy::full_shard}) {
      for (const bool at_step_end : {false, true}) {
        all.push_back({.strategy = strategy,
                       .mesh = {.replicate = 2},
                       .sum_replicas_at_step_end = at_step_end});
      }
    }
  }
  return all;
}

std::vector<ProgramRun> runs(DType dtype) {
  std::vector<ProgramRun> all;
  const Model model = model_with_experts(dtype);
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const Options& options : strategies_by_options(ranks)) {
      const int shard = ranks / options.mesh.replicate;
      std::set<int> sizes{1, shard};
      if (shard % 2 == 0) {
        sizes.insert(2);
      }
      for (const int ep : sizes) {
        ProgramRun run{.model = model, .options = options, .ranks = ranks, .steps = {}};
        run.steps.assign(3, plain_step(model.units().size(), 2));
        run.options.mesh.ep = ep;
        run.optimizer = OptimizerKind::adamw;
        all.push_back(run);
      }
    }
  }
  return all;
}

void check(const ProgramRun& run, std::vector<std::vector<LaunchRecord>>* launches = nullptr) {
  const std::string complaints = complaints_of(run, launches);
  CHECK_MESSAGE(complaints.empty(), row_of(run.options.strategy).name, ", ", run.ranks,
                " ranks, ep ", run.options.mesh.ep, ":\n", complaints);
}

/// The first launch that differs.
std::string difference(const std::vector<LaunchRecord>& found,
                       const std::vector<LaunchRecord>& right) {
  for (std::size_t i = 0; i < std::min(found.size(), right.size()); ++i) {
    if (found[i] != right[i]) {
      return ": " + to_string(found[i]) + ", not " + to_string(right[i]);
    }
  }
  return found.size() == right.size() ? "" : ": another count of launches";
}

TEST_CASE("experts train like the reference, in groups of every size, under every strategy") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (ProgramRun run : runs(dtype)) {
      check(run);
      run.options.gradient_divisor = 2.0F;
      run.options.expert_gradient_divisor = 3.0F;
      check(run);
    }
  }
}

TEST_CASE("routing that leaves out experts on some ranks changes no launch") {
  for (const ProgramRun& run : runs(DType::f32)) {
    std::vector<std::vector<LaunchRecord>> all_used;
    check(run, &all_used);
    ProgramRun routed = run;
    Random random(static_cast<std::uint64_t>(run.ranks));
    for (StepProgram& step : routed.steps) {
      for (MicroBatchProgram& program : step) {
        const auto on = [&] { return static_cast<std::uint32_t>(random.below(256)); };
        const std::uint32_t first = on();
        const std::uint32_t second = on();
        for (Op& op : program) {
          op.absent_on = op.unit == 1 ? first : op.unit == 3 ? second : 0;
          op.untouched = op.kind == Op::backward && op.unit == 2 ? 2 : 0;
          op.untouched_on = on();
        }
      }
    }
    std::vector<std::vector<LaunchRecord>> some_used;
    check(routed, &some_used);
    CHECK_MESSAGE(some_used[0] == all_used[0], row_of(run.options.strategy).name, ", ", run.ranks,
                  " ranks, ep ", run.options.mesh.ep, difference(some_used[0], all_used[0]));
  }
}

TEST_CASE("random programs of models with experts equal the reference") {
  for (const bool divergent : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 150; ++seed) {
      const ProgramRun run = random_strategy_run(seed, divergent, 40);
      CAPTURE(seed);
      CAPTURE(divergent);
      check(run);
    }
  }
}

}  // namespace
}  // namespace troupe::test
