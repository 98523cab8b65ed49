/// With AdamW on the toy model, whose every value depends on all earlier ones: parameters after
/// steps given up equal, bit for bit, those of the reference that has never seen these batches.
/// Optimizer state shows in the steps behind.
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/random.hpp"
#include "troupe/test/support/ranks.hpp"
#include "troupe/test/support/toy_training.hpp"

#include <doctest/doctest.h>

#include <map>
#include <mutex>
#include <stdexcept>

namespace troupe::test {
namespace {

std::vector<ToyVariant> variants() {
  constexpr Strategy owner = Strategy::owner_broadcast;
  constexpr Strategy sliced = Strategy::sharded_optimizer;
  return {
      {"owner_broadcast", {.strategy = owner, .bucket_bytes = 160}},
      {"sharded_optimizer", {.strategy = sliced, .bucket_bytes = 600}},
      {"sharded_optimizer, two replicas", {.strategy = sliced, .mesh = {.replicate = 2}}, 4},
      {"full_shard", {}},
      {"full_shard, no overlap", {.overlap = false}},
      {"full_shard, gathered again among 2", {.regather_group_size = 2, .slots = 2}, 4},
      {"full_shard, two replicas summed at step end",
       {.mesh = {.replicate = 2}, .sum_replicas_at_step_end = true},
       4},
  };
}

/// Units of sizes that divide by nothing, a weight that two of them share, and a frozen one.
Model odd_model(DType dtype) {
  Model model = toy_model({{37, 5}, {64}, {1, 29, 3}, {101}, {17, 0, 61}}, dtype);
  model.tie(4, "tied", 0, "p1");
  model.add_parameter(3, {.name = "frozen", .shape = {3, 5}, .dtype = dtype, .trainable = false});
  return model;
}

constexpr int steps = 10;

/// Steps that are given up, by which rank, before which operation. Two in a row, the first and the
/// last one are among them.
struct GivenUp {
  int rank = 0;
  std::size_t before = 0;
};
std::map<int, GivenUp> plan_of(Random& random, int ranks, std::size_t operations) {
  std::map<int, GivenUp> plan;
  for (const int step : {0, 3, 4, 6, steps - 1}) {
    plan[step] = {static_cast<int>(random.below(static_cast<std::uint64_t>(ranks))),
                  static_cast<std::size_t>(random.below(operations))};
  }
  return plan;
}

using Parameters = std::map<std::string, std::vector<float>>;

struct Run {
  const Model& model;
  Options options;
  StepProgram program;
  std::map<int, GivenUp> given_up;
  bool worker = false;
};

Parameters train(World& world, const Run& run, Findings& findings) {
  Runtime runtime(world, run.model, run.options);
  ToyTrainer trainer{runtime, world.rank()};
  trainer.stream = run.worker ? &world.host_device().create_host_stream("compute") : nullptr;
  ToyOptimizer optimizer{OptimizerKind::adamw};
  trainer.initialize();
  for (int step = 0; step < steps; ++step) {
    const auto planned = run.given_up.find(step);
    std::size_t operation = 0;
    trainer.before = [&](const Op&) {
      if (planned != run.given_up.end() && planned->second.rank == world.rank() &&
          operation++ == planned->second.before) {
        throw std::runtime_error("bad batch");
      }
    };
    bool given_up = false;
    try {
      static_cast<void>(trainer.step(run.program, step));
      world.barrier();
      optimizer.step(runtime);
    } catch (const std::exception& exception) {
      given_up = true;
      runtime.abort_step(exception.what());
    }
    findings.expect(given_up == (planned != run.given_up.end()),
                    "step " + std::to_string(step) + " is given up, or is not");
  }
  Parameters parameters;
  for (const Parameter& parameter : run.model.parameters()) {
    parameters[parameter.full_name] = runtime.full_parameter(parameter.full_name);
  }
  return parameters;
}

Parameters reference_of(const Run& run, int ranks) {
  Reference reference(run.model, ranks, OptimizerKind::adamw,
                      {.replicas = run.options.mesh.replicate,
                       .at_step_end = run.options.sum_replicas_at_step_end,
                       .once = run.options.strategy != Strategy::full_shard});
  for (int step = 0; step < steps; ++step) {
    if (!run.given_up.contains(step)) {
      static_cast<void>(reference.step(run.program, step));
    }
  }
  Parameters parameters;
  for (const Parameter& parameter : run.model.parameters()) {
    parameters[parameter.full_name] = reference.weights()[parameter.id];
  }
  return parameters;
}

void check(const Run& run, int ranks) {
  const Parameters right = reference_of(run, ranks);
  Findings findings;
  const Outcome outcome = outcome_of(ranks, [&](World& world) {
    const Parameters found = train(world, run, findings);
    for (const auto& [name, values] : right) {
      findings.expect(found.at(name) == values,
                      name + " on rank " + std::to_string(world.rank()) + " is another");
    }
  });
  CHECK(findings.text() == "");
  CHECK(outcome.text() == "");
}

TEST_CASE("parameters equal the reference without the batches given up, bit for bit") {
  std::uint64_t seed = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Model model = odd_model(dtype);
    for (const int micro_batches : {1, 2}) {
      const StepProgram program = plain_step(model.units().size(), micro_batches);
      const std::size_t operations = program.size() * program.front().size();
      for (const ToyVariant& variant : variants()) {
        for (const int ranks : {1, 2, 3, 4, 7}) {
          if (ranks % variant.ranks_divisor != 0) {
            continue;
          }
          CAPTURE(variant.name);
          CAPTURE(ranks);
          CAPTURE(++seed);
          Random random(seed);
          const auto plan = plan_of(random, ranks, operations);
          check({model, variant.options, program, plan, seed % 3 == 0}, ranks);
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::test
