/// Whole trainings of the toy with AdamW, and variants of options to train it with.
#pragma once

#include "toy_trainer.hpp"

#include <doctest/doctest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::test {

struct ToyVariant {
  const char* name;
  Options options;
  int ranks_divisor = 1;  ///< of world sizes that it can run on
};

using ToyParameters = std::map<std::string, std::vector<float>>;

/// All parameters at the end; checks that they are the same on all ranks.
inline ToyParameters train_toy(const Model& model,
                               const Options& options,
                               int ranks,
                               const std::vector<StepProgram>& steps) {
  std::mutex mutex;
  ToyParameters first;
  World::local(ranks,
               {.timeout = std::chrono::seconds{60}, .on_warning = [](const std::string&) {}})
      .run([&](World& world) {
        Runtime runtime(world, model, options);
        ToyTrainer trainer{runtime, world.rank()};
        ToyOptimizer optimizer{OptimizerKind::adamw};
        trainer.initialize();
        for (std::size_t step = 0; step < steps.size(); ++step) {
          static_cast<void>(trainer.step(steps[step], static_cast<int>(step)));
          optimizer.step(runtime);
        }
        for (const Parameter& parameter : model.parameters()) {
          const std::vector<float> full = runtime.full_parameter(parameter.full_name);
          const std::scoped_lock lock(mutex);
          const auto& known = first.try_emplace(parameter.full_name, full).first->second;
          CHECK_MESSAGE(known == full, parameter.full_name, " differs on rank ", world.rank());
        }
      });
  return first;
}

}  // namespace troupe::test
