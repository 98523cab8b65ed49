/// A replayed order trains like the same calls written by hand.
#include "troupe/layers/replay.hpp"

#include "troupe/layers/order_file.hpp"
#include "troupe/test/support/toy_trainer.hpp"

#include <doctest/doctest.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::test {
namespace {

Model four_units() {
  return toy_model({{37, 5}, {64}, {1, 29, 3}, {17}});
}

/// A step of two micro-batches: nesting, a unit used twice, a recomputation and an eval.
constexpr const char* step_text =
    "micro_batch\n"
    "  forward u0\n"
    "  begin forward u1\n"
    "    forward u2\n"
    "    forward u2\n"
    "  end\n"
    "  forward u3\n"
    "  backward u3\n"
    "  forward u1      # recomputed\n"
    "  eval\n"
    "    forward u3\n"
    "    begin forward u0\n"
    "      forward u2\n"
    "    end\n"
    "  end\n"
    "  begin backward u1\n"
    "    backward u2\n"
    "    backward u2\n"
    "  end\n"
    "  backward u0\n"
    "micro_batch\n"
    "  forward u2\n"
    "  backward u2\n";

/// The same step as the reference's program; the reader of the text has no part in it.
StepProgram step_program() {
  return {{{Op::forward, 0},
           {Op::begin_forward, 1},
           {Op::forward, 2},
           {Op::forward, 2},
           {Op::end},
           {Op::forward, 3},
           {Op::backward, 3},
           {Op::forward, 1},
           {Op::begin_eval},
           {Op::forward, 3},
           {Op::begin_forward, 0},
           {Op::forward, 2},
           {Op::end},
           {Op::end_eval},
           {Op::begin_backward, 1},
           {Op::backward, 2},
           {Op::backward, 2},
           {Op::end},
           {Op::backward, 0}},
          {{Op::forward, 2}, {Op::backward, 2}}};
}

LayerOrder step_order(const Model& model) {
  auto order = parse_order(step_text, model);
  if (!order) {
    FAIL(order.failure().text);
  }
  return std::move(order).value();
}

/// The toy's computation for a replay.
class ToyCompute {
 public:
  ToyCompute(const Model& model, int rank) : model_(model), rank_(rank) {}
  void begin_step(int step) {
    step_ = step;
    micro_batch_ = -1;
  }

  void operator()(Use& use, const ReplayedUse& at) {
    if (micro_batch_ != static_cast<int>(at.micro_batch)) {
      micro_batch_ = static_cast<int>(at.micro_batch);
      activations_ = {};
    }
    if (at.eval && !in_eval_) {
      eval_ = {};
    }
    in_eval_ = at.eval;
    Activations& activations = at.eval ? eval_ : activations_;
    const Data data{rank_, step_, micro_batch_};
    const Unit& unit = model_.units()[at.unit];
    std::vector<std::span<const float>> values;
    for (const UnitParameter& each : unit.parameters) {
      values.push_back(use[each.name].as<float>());
    }
    if (at.pass != Pass::backward) {
      activations.forward(data, at.unit, values);
      return;
    }
    std::size_t i = 0;
    for (std::size_t p = 0; p < values.size(); ++p) {
      const GradientView gradient = use.gradient(unit.parameters[p].name);
      for (std::size_t j = 0; j < values[p].size(); ++j, ++i) {
        float& out = gradient.as<float>()[j];
        const float g = activations.gradient(data, at.unit, i, values[p][j]);
        out = gradient.accumulate ? out + g : g;
      }
    }
    activations.backward_done(at.unit);
  }

 private:
  const Model& model_;
  int rank_;
  int step_ = 0;
  int micro_batch_ = -1;
  bool in_eval_ = false;
  Activations activations_;
  Activations eval_;
};

WorldOptions options() {
  return {.timeout = std::chrono::seconds{20},
          .on_failure = [](const std::string&) {},
          .on_warning = [](const std::string&) {}};
}

TEST_CASE("a replayed order trains bit for bit like the reference that runs the same program") {
  constexpr int steps = 4;
  const Model model = four_units();
  const LayerOrder order = step_order(model);
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    const ReferenceResult expected = Reference(model, ranks, OptimizerKind::adamw)
                                         .train(std::vector<StepProgram>(steps, step_program()));
    std::mutex mutex;
    std::size_t compared = 0;
    std::string differs;
    World::local(ranks, options()).run([&](World& world) {
      Runtime runtime(world, model, {.slots = 3, .gradient_slots = 3});
      ToyTrainer{runtime}.initialize();
      ToyOptimizer optimizer{OptimizerKind::adamw};
      ToyCompute compute(model, world.rank());
      Replay replay(order, [&](Use& use, const ReplayedUse& at) { compute(use, at); });
      for (int step = 0; step < steps; ++step) {
        compute.begin_step(step);
        replay.run(runtime);
        runtime.finish_gradients();
        optimizer.step(runtime);
      }
      for (const auto& [name, values] : expected.parameters) {
        const bool equal = runtime.full_parameter(name) == values;
        const std::scoped_lock lock(mutex);
        ++compared;
        differs += equal ? "" : name + " on rank " + std::to_string(world.rank()) + "; ";
      }
    });
    CHECK(differs == "");
    CHECK(compared == static_cast<std::size_t>(ranks) * model.parameters().size());
  }
}

TEST_CASE("an exception in a replayed use ends every rank, and the innermost use is named") {
  const Model model = four_units();
  const LayerOrder order = step_order(model);
  std::mutex mutex;
  std::vector<std::string> heard(3);
  std::string thrown;
  int rank_at_fault = -1;
  try {
    World::local(3, options()).run([&](World& world) {
      Runtime runtime(world, model, {.slots = 3, .gradient_slots = 3});
      ToyTrainer{runtime}.initialize();
      Replay replay(order, [&](Use& /*use*/, const ReplayedUse& at) {
        if (world.rank() == 1 && at.unit == 2) {  // inside the forward of u1
          throw std::runtime_error("boom");
        }
      });
      try {
        replay.run(runtime);
        runtime.finish_gradients();
      } catch (const std::exception& error) {
        const std::scoped_lock lock(mutex);
        heard[static_cast<std::size_t>(world.rank())] = error.what();
        throw;
      }
    });
  } catch (const Error& error) {
    thrown = error.what();
    rank_at_fault = error.failure().rank;
  }
  const std::string expected = "rank 1 failed at forward of unit 2 'u2': boom";
  CHECK(thrown == expected);
  CHECK(rank_at_fault == 1);
  CHECK(heard == std::vector<std::string>{expected, "boom", expected});
}

}  // namespace
}  // namespace troupe::test
