#include "timed_world.hpp"

#include <stdexcept>

namespace troupe::test {

TimedRun run_timed(const TimedLayers& layers, const Options& options, int steps) {
  ReplayChooser plainest({});
  Simulation simulation(timed_simulation(layers), plainest,
                        [](const std::string& invariant, const std::string& text) {
                          throw std::runtime_error(invariant + ": " + text);
                        });
  TimedRun of_rank_0;
  simulation.run([&](World& world) {
    TimedRun run;
    run.steps.resize(static_cast<std::size_t>(steps));
    TimedCompute compute(simulation, world.rank(), layers.host_runs_ahead);
    Runtime runtime(world, timed_model(layers.layers), options);
    runtime.initialize([](ParameterView) {});
    const auto units = static_cast<UnitId>(layers.layers);
    for (TimedRun::Step& step : run.steps) {
      step.begin = simulation.timeline().now();
      {
        const auto micro_batch = runtime.micro_batch();
        for (UnitId unit = 0; unit < units; ++unit) {
          const Use use = runtime.forward(unit, compute.stream());
          compute.run(layers.forward, step.forwards);
        }
        for (UnitId unit = units; unit-- > 0;) {
          const Use use = runtime.backward(unit, compute.stream());
          compute.run(layers.backward, step.backwards);
        }
      }
      runtime.finish_gradients();
      step.end = simulation.timeline().now();
      const Update update = runtime.update();
    }
    compute.synchronize();
    run.report = runtime.report();
    if (world.rank() == 0) {
      of_rank_0 = run;
    }
  });
  if (const auto failure = simulation.fabric().first_failure().get()) {
    throw std::runtime_error(failure->text);
  }
  return of_rank_0;
}

}  // namespace troupe::test
