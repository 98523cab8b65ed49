/// A world of processes trains as one of threads does, bit for bit.
#include "troupe/test/support/joined_ranks.hpp"
#include "troupe/test/support/toy_training.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <string>

namespace troupe::test {
namespace {

std::vector<ToyVariant> variants() {
  return {
      {"owner_broadcast", {.strategy = Strategy::owner_broadcast}},
      {"sharded_optimizer", {.strategy = Strategy::sharded_optimizer, .bucket_bytes = 600}},
      {"full_shard", {}},
      {"full_shard, two replicas", {.mesh = {.replicate = 2}}, 4},
  };
}

/// Trains one rank; its parameters at the end.
ToyParameters train(World& world,
                    const Model& model,
                    const Options& options,
                    const std::vector<StepProgram>& steps) {
  Runtime runtime(world, model, options);
  ToyTrainer trainer{runtime, world.rank()};
  ToyOptimizer optimizer{OptimizerKind::adamw};
  trainer.initialize();
  for (std::size_t step = 0; step < steps.size(); ++step) {
    static_cast<void>(trainer.step(steps[step], static_cast<int>(step)));
    optimizer.step(runtime);
  }
  ToyParameters parameters;
  for (const Parameter& parameter : model.parameters()) {
    parameters[parameter.full_name] = runtime.full_parameter(parameter.full_name);
  }
  return parameters;
}

TEST_CASE("a world of processes equals one of threads bit for bit, with every strategy") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Model model = toy_model({{37, 5}, {64}, {1, 29, 3}, {101}, {2, 0, 61}}, dtype);
    const std::vector<StepProgram> steps(3, plain_step(model.units().size(), 2));
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const ToyVariant& variant : variants()) {
        if (ranks % variant.ranks_divisor != 0) {
          continue;
        }
        CAPTURE(std::string(variant.name));
        CAPTURE(ranks);
        CAPTURE(std::string(to_string(dtype)));
        const ToyParameters expected = train_toy(model, variant.options, ranks, steps);
        std::atomic<int> equal{0};
        const JoinedOutcome outcome = JoinedRanks{}.run(ranks, [&](World& world) {
          CHECK(world.size() == ranks);
          equal += train(world, model, variant.options, steps) == expected ? 1 : 0;
        });
        for (const auto& failure : outcome.failures) {
          CHECK_MESSAGE(!failure, failure->text);
        }
        CHECK(equal == ranks);
      }
    }
  }
}

TEST_CASE("a trainer's own collectives say the same as in a world of threads") {
  const auto values_of = [](World& world) {
    std::vector<float> values{0.1F * static_cast<float>(world.rank() + 1), 3.0F};
    world.all_reduce(values);
    std::vector<float> own{static_cast<float>(world.rank()) / 3.0F};
    std::vector<float> all(static_cast<std::size_t>(world.size()));
    world.all_gather(own, all);
    values.insert(values.end(), all.begin(), all.end());
    world.broadcast(own, world.size() - 1);
    values.push_back(own[0]);
    world.barrier();
    values.push_back(world.stop_requested() ? 1.0F : 0.0F);
    return values;
  };
  for (const int ranks : {1, 2, 3, 4, 7}) {
    std::vector<std::vector<float>> expected(static_cast<std::size_t>(ranks));
    std::vector<std::vector<float>> actual(static_cast<std::size_t>(ranks));
    World::local(ranks).run(
        [&](World& world) { expected[static_cast<std::size_t>(world.rank())] = values_of(world); });
    JoinedRanks{}.run(ranks, [&](World& world) {
      actual[static_cast<std::size_t>(world.rank())] = values_of(world);
    });
    CHECK(actual == expected);
  }
}

}  // namespace
}  // namespace troupe::test
