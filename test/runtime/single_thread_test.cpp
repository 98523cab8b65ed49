/// Whole training steps of several ranks, with the real actors, on one thread.
#include "troupe/test/support/stepped_world.hpp"
#include "troupe/test/support/toy_trainer.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

struct Outcome {
  std::vector<std::vector<LaunchRecord>> launches;
  std::uint64_t hash = 0;
  std::uint64_t choices = 0;
};

/// Trains `steps` of the toy on `ranks` fibers under `seed` and checks everything that has to hold.
Outcome train(int ranks, std::uint64_t seed) {
  const Model model = toy_model({{37, 5}, {64}, {1, 29, 3}, {101}, {2, 0, 61}});
  const std::size_t units = model.units().size();
  StepProgram program = plain_step(units, 2);
  program[1] = {{Op::forward, 0},    {Op::begin_forward, 2}, {Op::forward, 1},  {Op::end, 0},
                {Op::begin_eval, 0}, {Op::forward, 3},       {Op::end_eval, 0}, {Op::forward, 4},
                {Op::backward, 4},   {Op::forward, 2},       {Op::backward, 2}, {Op::backward, 1},
                {Op::backward, 0}};
  const std::vector<StepProgram> programs(3, program);
  const ReferenceResult expected = Reference(model, ranks, OptimizerKind::adamw).train(programs);
  SteppedWorld stepped(ranks, seed);
  stepped.run([&](World& world) {
    Options options;
    options.slots = 2;
    options.prefetch_depth = static_cast<int>(seed % 3);
    Runtime runtime(world, model, options);
    // Worker streams are waited for on the host, which a fiber cannot: the runtime's own waiting is
    // what is looked at here.
    ToyTrainer trainer{runtime, world.rank(), nullptr};
    ToyOptimizer optimizer{OptimizerKind::adamw};
    trainer.initialize();
    for (int step = 0; step < 3; ++step) {
      static_cast<void>(trainer.step(programs[static_cast<std::size_t>(step)], step));
      optimizer.step(runtime);
    }
    for (const auto& [name, values] : expected.parameters) {
      CHECK_MESSAGE(runtime.full_parameter(name) == values, name, " on rank ", world.rank());
    }
  });
  for (const std::string& error : stepped.errors) {
    CHECK(error.empty());
  }
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(stepped.launches[static_cast<std::size_t>(rank)] == stepped.launches.front());
    CHECK(stepped.context(rank).device().counters().gradient_bytes.load() == 0);
  }
  return {stepped.launches, stepped.hash(), stepped.choices()};
}

TEST_CASE("training on one thread equals the reference, whatever the order of messages") {
  std::vector<LaunchRecord> first;
  std::uint64_t choices = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Outcome outcome = train(seed % 2 == 0 ? 2 : 3, 3 * seed);
    choices += outcome.choices;
    if (first.empty()) {
      first = outcome.launches.front();
    }
    // The same calls and options: the same launches, apart from sizes, which depend on the ranks.
    if (seed % 2 == 0) {
      CHECK(outcome.launches.front() == first);
    }
  }
  MESSAGE(choices, " choices in 100 runs");
}

TEST_CASE("the same seed gives the same run") {
  const Outcome once = train(3, 42);
  const Outcome again = train(3, 42);
  CHECK(once.hash == again.hash);
  CHECK(once.choices == again.choices);
  CHECK(train(3, 45).hash != once.hash);
}

}  // namespace
}  // namespace troupe::test
