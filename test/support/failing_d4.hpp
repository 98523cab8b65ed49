/// D4 in worlds that are meant to fail.
#pragma once

#include "d4.hpp"
#include "failing_world.hpp"

namespace troupe::test {

/// What the trainers read is compared in `findings` all the same.
struct FailingD4 {
  Findings findings;
  Model model = d4_model();

  Outcome run(int ranks,
              const Options& options,
              const std::function<void(D4Trainer&)>& body,
              std::chrono::milliseconds timeout = failing_world_timeout) {
    return outcome_of(
        ranks,
        [&](World& world) {
          D4Trainer trainer(world, findings, model, options);
          body(trainer);
        },
        timeout);
  }
};

}  // namespace troupe::test
