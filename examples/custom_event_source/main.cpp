// Trains with a framework that runs the layers itself: its hooks open and close the uses.
//
//     custom_event_source               the framework's executor drives the layers
//     custom_event_source block.order   the order of layer events in that file does
//
// Both print the sum of all parameters, the same one.
#include "tiny_framework.hpp"
#include "troupe/layers/order_file.hpp"
#include "troupe/layers/replay.hpp"
#include "troupe/layers/scope_stack.hpp"
#include "troupe/runtime/optimizer.hpp"
#include "troupe/runtime/runtime.hpp"

#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t numel = 4;

/// Data of a rank: x is zero, and targets are 8·i on rank 0, 24·i on rank 1, so 16·i on average.
struct Batch {
  std::vector<float> x;
  std::vector<float> target;
};

Batch batch_of(int rank) {
  Batch batch{std::vector<float>(numel, 0.0F), {}};
  for (std::size_t i = 1; i <= numel; ++i) {
    batch.target.push_back(static_cast<float>((8 + 16 * rank) * static_cast<int>(i)));
  }
  return batch;
}

// ---- the event source: all that a framework needs to add ----------------------------------------

/// Runs one micro-batch in the framework's executor; the module's id is its unit's.
class FrameworkSource final : public troupe::LayerEventSource {
 public:
  FrameworkSource(tiny::Executor& executor, Batch batch)
      : executor_(executor), batch_(std::move(batch)) {}

  void run(troupe::LayerEvents& events) override {
    const auto micro_batch = events.micro_batch();
    // Modules nest, and so do their uses. If the executor throws, the stack abandons the innermost
    // use first, and the failure names its unit.
    troupe::ScopeStack open;
    executor_.hooks.pre_forward = [&](tiny::Module& module) {
      troupe::Use use = events.forward(static_cast<troupe::UnitId>(module.id));
      module.bias = use["bias"].as<float>();
      open.push(std::move(use));
    };
    executor_.hooks.pre_backward = [&](tiny::Module& module) {
      troupe::Use use = events.backward(static_cast<troupe::UnitId>(module.id));
      const troupe::GradientView gradient = use.gradient("bias");
      module.bias = use["bias"].as<float>();
      module.bias_gradient = gradient.as<float>();
      module.accumulate = gradient.accumulate;
      open.push(std::move(use));
    };
    executor_.hooks.post_forward = [&](tiny::Module& module) {
      module.bias = {};  // not the framework's any more
      open.pop();
    };
    executor_.hooks.post_backward = [&](tiny::Module& module) {
      module.bias = {};
      module.bias_gradient = {};
      open.pop();
    };
    executor_.run(batch_.x, batch_.target);
  }

 private:
  tiny::Executor& executor_;
  Batch batch_;
};

// ---- the model and its training -----------------------------------------------------------------

tiny::Module make_modules() {
  return {"net", 0, {{"embed", 1}, {"block", 2, {{"block.mlp", 3}}}}};
}

/// A unit for each module; a unit's parent is the module around it.
void add_units(troupe::Model& model, const tiny::Module& module, troupe::UnitId parent) {
  const troupe::UnitId unit = model.add_unit(module.name, parent);
  model.add_parameter(unit, {.name = "bias", .shape = {numel}});
  for (const tiny::Module& child : module.children) {
    add_units(model, child, unit);
  }
}

/// Computes what the executor does, in the order of a file.
troupe::Replay make_replay(const troupe::LayerOrder& order, const Batch& batch) {
  return {
      order, [batch, y = batch.x](troupe::Use& use, const troupe::ReplayedUse& at) mutable {
        if (at.pass != troupe::Pass::backward) {
          tiny::forward({.name = "", .bias = use["bias"].as<float>()}, y);
          return;
        }
        const troupe::GradientView gradient = use.gradient("bias");
        tiny::backward(
            {.name = "", .bias_gradient = gradient.as<float>(), .accumulate = gradient.accumulate},
            y, batch.target);
      }};
}

/// The biases of 4 modules add up to y. Their sum s begins at 0; a step moves each of them by
/// 1/8 · (16·i − s), so s by half of what is missing: s = 0, 8·i, 12·i, 14·i, 15·i. After 4 steps
/// the sum over i = 1 … 4 is 15 · 10 = 150.
float train(troupe::World& world,
            const troupe::Model& model,
            const std::optional<troupe::LayerOrder>& order) {
  troupe::Runtime runtime(world, model);
  runtime.initialize([](troupe::ParameterView) {});  // zeros
  tiny::Executor executor(make_modules());
  troupe::Sgd optimizer({.learning_rate = 0.125F});
  for (int step = 0; step < 4; ++step) {
    const Batch batch = batch_of(world.rank());
    if (order) {
      make_replay(*order, batch).run(runtime);
    } else {
      FrameworkSource(executor, batch).run(runtime);
    }
    runtime.finish_gradients();
    optimizer.step(runtime);
  }
  float sum = 0.0F;
  for (const troupe::Parameter& parameter : model.parameters()) {
    for (const float value : runtime.full_parameter(parameter.full_name)) {
      sum += value;
    }
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    troupe::Model model;
    add_units(model, make_modules(), troupe::no_unit);
    std::optional<troupe::LayerOrder> order;
    if (argc > 1) {
      auto read = troupe::read_order_file(argv[1], model);
      if (!read) {
        throw troupe::Error(read.failure());
      }
      order = std::move(read).value();
    }
    troupe::World::local(2).run([&](troupe::World& world) {
      const float sum = train(world, model, order);
      if (world.rank() == 0) {
        std::printf("parameter sum %g\n", static_cast<double>(sum));
      }
    });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
