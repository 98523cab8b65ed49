// The trainer of README.md with layers to compute, as a project of its own would have it.
//
// Layer u adds its w to y, which begins at 0, and the loss is ½·Σ(y − target)²: the gradient of
// every w is y − target. Element i (from 1) has the target 8·i on rank 0 and 24·i on rank 1, so
// 16·i on average. Four layers begin at 1, so y at 4; a step moves each w by 1/8 · (16·i − y), and
// y by half of what is missing. After 4 steps y = 16·i − (16·i − 4)/16 = 15·i + 1/4, exact in fp32.
#include "troupe/actors/rank_state.hpp"
#include "troupe/runtime/optimizer.hpp"
#include "troupe/runtime/runtime.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr troupe::UnitId layers = 4;
constexpr std::size_t numel = 4;

void layer_forward(std::vector<float>& y, std::span<const float> w) {
  for (std::size_t i = 0; i < numel; ++i) {
    y[i] += w[i];
  }
}

void layer_backward(const std::vector<float>& y,
                    int rank,
                    std::span<float> gradient,
                    bool accumulate) {
  for (std::size_t i = 0; i < numel; ++i) {
    const auto target = static_cast<float>(8 + 16 * rank) * static_cast<float>(i + 1);
    gradient[i] = (accumulate ? gradient[i] : 0.0F) + y[i] - target;
  }
}

void train(troupe::World& world, const troupe::Model& model) {
  troupe::Runtime runtime(world, model, {.prefetch_depth = 2});
  runtime.initialize([](troupe::ParameterView p) { std::ranges::fill(p.data, 1.0F); });
  troupe::Sgd optimizer({.learning_rate = 0.125F});
  for (int step = 0; step < 4; ++step) {
    std::vector<float> y(numel, 0.0F);
    {
      auto micro_batch = runtime.micro_batch();
      for (troupe::UnitId u = 0; u < layers; ++u) {
        auto use = runtime.forward(u);
        layer_forward(y, use["w"].as<float>());
      }
      for (troupe::UnitId u = layers; u-- > 0;) {
        auto use = runtime.backward(u);
        auto gradient = use.gradient("w");
        layer_backward(y, world.rank(), gradient.as<float>(), gradient.accumulate);
      }
    }
    runtime.finish_gradients();
    optimizer.step(runtime);
  }
  std::vector<float> y(numel, 0.0F);
  for (const troupe::Parameter& parameter : model.parameters()) {
    layer_forward(y, runtime.full_parameter(parameter.full_name));
  }
  if (world.rank() == 0) {
    std::printf("y %g %g %g %g\n", static_cast<double>(y[0]), static_cast<double>(y[1]),
                static_cast<double>(y[2]), static_cast<double>(y[3]));
  }
}

}  // namespace

int main() {
  try {
    troupe::Model model;
    for (troupe::UnitId u = 0; u < layers; ++u) {
      const auto block = model.add_unit("block." + std::to_string(u));
      model.add_parameter(block, {.name = "w", .shape = {numel}});
    }
    std::atomic<int> reduces{0};
    troupe::WorldOptions options;
    options.on_launch = [&reduces](int, const troupe::LaunchRecord& launch) {
      reduces += launch.op == troupe::Collective::reduce_scatter ? 1 : 0;
    };
    troupe::World::local(2, options).run([&](troupe::World& world) { train(world, model); });
    std::printf("reduces %d\n", reduces.load());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
