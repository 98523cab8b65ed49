// Every order of messages, trainers and devices of a tiny world, up to swaps of steps that touch
// nothing in common; and that this loses nothing, on a world small enough for really all orders.
// See README.md. Exit: 0 nothing found, 1 a violation.
#include "explorer.hpp"
#include "outcome.hpp"

#include <chrono>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <string>
#include <utility>

namespace troupe::test {
namespace {

/// One unit of one parameter, trained for one step of `program`.
ModelWorld tiny_world(int ranks, MicroBatchProgram program) {
  ModelWorld world;
  world.model.add_parameter(world.model.add_unit("u"), {.name = "p", .shape = {3}});
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

/// Runs all there is, and says what that was.
void explore(const std::string& name, const ModelWorld& world, Explorer& explorer) {
  const auto began = std::chrono::steady_clock::now();
  const Expected expected(world);
  while (explorer.next()) {
    const Outcome outcome = run_world(world, expected, Pace::instant, explorer, violated);
    if (!outcome.failure.empty()) {
      std::cout << "a world without faults failed: " << outcome.failure << "\n";
      std::_Exit(1);
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::cout << name << ": " << explorer.complete_runs() << " orders in "
            << explorer.classes().size() << " classes, visited " << explorer.visited_steps()
            << " steps, pruned " << explorer.pruned_steps() << " steps and "
            << explorer.pruned_runs() << " runs, " << std::fixed << std::setprecision(1) << seconds
            << " s\n";
}

int run() {
  const ModelWorld smallest = tiny_world(1, {});
  Explorer all(false);
  explore("1 rank, an empty step and its update, really all orders", smallest, all);
  Explorer reduced(true);
  explore("1 rank, an empty step and its update, reduced", smallest, reduced);
  if (reduced.classes() != all.classes() || reduced.complete_runs() >= all.complete_runs()) {
    std::cout << "the reduction is not sound: it must find the same classes in fewer runs\n";
    return 1;
  }
  Explorer largest(true);
  explore("1 rank, a forward of one unit, the end of the step and its update, reduced",
          tiny_world(1, {{Op::forward, 0}}), largest);
  ModelWorld pair = tiny_world(2, {});
  pair.all_reduce_each_step = true;
  pair.explore_update = false;
  Explorer of_two(true);
  explore("2 ranks, an empty micro-batch and an all_reduce of the trainer's, reduced", pair,
          of_two);
  return 0;
}

}  // namespace
}  // namespace troupe::test

int main() {
  return troupe::test::run();
}
