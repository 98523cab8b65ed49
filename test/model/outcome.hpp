/// One run of a world: everything is set up, trained, looked at and taken down again.
#pragma once

#include "model_world.hpp"
#include "simulation.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::test {

struct Outcome {
  std::uint64_t steps = 0;     ///< things that happened
  std::uint64_t messages = 0;  ///< between actors
  std::uint64_t hash = 0;      ///< of all that happened
  std::string failure;         ///< the world's first; empty: training was completed
  std::vector<LaunchRecord> launches;
};

/// Hears of a violation, with the simulation as it is then.
using ViolationHandler = std::function<void(
    const std::string& invariant, const std::string& text, const Simulation& simulation)>;

/// Runs `world` to its end and checks all that has to hold, on the way and at the end.
Outcome run_world(const ModelWorld& world,
                  const Expected& expected,
                  Pace pace,
                  Chooser& chooser,
                  const ViolationHandler& violated);

}  // namespace troupe::test
