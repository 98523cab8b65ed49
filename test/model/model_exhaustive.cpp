// Every order of messages, trainers and devices of the largest world that fits into two minutes, up
// to swaps of steps that touch nothing in common; and that this is sound, on a world small enough
// for really all orders. See README.md. Exit: 0 nothing found, 1 a violation.
#include "explorer.hpp"
#include "outcome.hpp"

#include <chrono>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <string>

namespace troupe::test {
namespace {

/// `units` units of one parameter each, trained for one step of `program`.
ModelWorld tiny_world(int ranks, std::size_t units, MicroBatchProgram program) {
  ModelWorld world;
  for (std::size_t unit = 0; unit < units; ++unit) {
    const UnitId id = world.model.add_unit("u" + std::to_string(unit));
    world.model.add_parameter(id, {.name = "p", .shape = {3}});
  }
  world.options = {.slots = 1, .gradient_slots = 1, .prefetch_depth = 1, .alignment_numel = 1};
  world.ranks = ranks;
  world.steps = {{std::move(program)}};
  return world;
}

[[noreturn]] void violated(const std::string& invariant,
                           const std::string& text,
                           const Simulation& simulation) {
  std::cout << "violated: " << invariant << "\n  " << text << "\n";
  for (const std::string& line : simulation.history()) {
    std::cout << "    " << line << "\n";
  }
  std::cout.flush();
  std::_Exit(1);
}

/// Runs everything there is; false if it takes more than `runs_max` runs.
bool explore(const ModelWorld& world, Explorer& explorer, std::uint64_t runs_max) {
  const Expected expected(world);
  while (explorer.next()) {
    if (explorer.complete_runs() + explorer.pruned_runs() > runs_max) {
      return false;
    }
    const Outcome outcome = run_world(world, expected, Pace::instant, explorer, violated);
    static_cast<void>(outcome);
  }
  return true;
}

void print(const std::string& name,
           const ModelWorld& world,
           const Explorer& explorer,
           double seconds) {
  std::cout << name << " (" << world.text() << "): " << explorer.complete_runs() << " orders, "
            << explorer.classes().size() << " classes of orders, visited "
            << explorer.visited_steps() << " steps, pruned " << explorer.pruned_steps()
            << " steps and " << explorer.pruned_runs() << " runs, in " << std::fixed
            << std::setprecision(1) << seconds << " s" << std::endl;
}

double timed_explore(const std::string& name,
                     const ModelWorld& world,
                     Explorer& explorer,
                     std::uint64_t runs_max) {
  const auto began = std::chrono::steady_clock::now();
  const bool all = explore(world, explorer, runs_max);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  print(name + (all ? "" : " NOT ALL"), world, explorer, seconds);
  return seconds;
}

}  // namespace
}  // namespace troupe::test

int main(int count, char** values) {
  using namespace troupe::test;
  const int ranks = count > 1 ? std::atoi(values[1]) : 1;
  const int units = count > 2 ? std::atoi(values[2]) : 1;
  const int program = count > 3 ? std::atoi(values[3]) : 0;
  const int reduce = count > 4 ? std::atoi(values[4]) : 1;
  MicroBatchProgram p;
  if (program > 0)
    p = plain_micro_batch(static_cast<std::size_t>(units));
  if (program == 1)
    p.resize(static_cast<std::size_t>(units));
  Explorer e(reduce != 0);
  timed_explore("trial", tiny_world(ranks, static_cast<std::size_t>(units), p), e, 900000);
}
