/// Stands for a framework of your own: modules inside modules, an executor that runs them, and the
/// hooks that most frameworks have. It knows nothing of Troupe.
#pragma once

#include <cstddef>
#include <functional>
#include <ranges>
#include <span>
#include <string>
#include <vector>

namespace tiny {

/// Adds its bias to what flows through, then runs its children.
struct Module {
  std::string name;
  std::size_t id = 0;
  std::vector<Module> children = {};
  // Where the values are, while the module runs. Whoever owns the memory points them there.
  std::span<const float> bias = {};
  std::span<float> bias_gradient = {};
  bool accumulate = false;  ///< add to `bias_gradient` instead of overwriting it
};

/// y += bias
inline void forward(const Module& module, std::vector<float>& y) {
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] += module.bias[i];
  }
}

/// The gradient of ½·Σ(y − target)² is the same for every bias: y − target.
inline void backward(const Module& module,
                     const std::vector<float>& y,
                     const std::vector<float>& target) {
  for (std::size_t i = 0; i < y.size(); ++i) {
    module.bias_gradient[i] =
        (module.accumulate ? module.bias_gradient[i] : 0.0F) + y[i] - target[i];
  }
}

struct Hooks {
  std::function<void(Module&)> pre_forward, post_forward, pre_backward, post_backward;
};

class Executor {
 public:
  explicit Executor(Module root) : root_(std::move(root)) {}

  /// Forward and backward of the whole model on one micro-batch.
  void run(std::vector<float> y, const std::vector<float>& target) {
    run_forward(root_, y);
    run_backward(root_, y, target);
  }

  const Module& root() const { return root_; }
  Hooks hooks;

 private:
  void run_forward(Module& module, std::vector<float>& y) {
    hooks.pre_forward(module);
    forward(module, y);
    for (Module& child : module.children) {
      run_forward(child, y);
    }
    hooks.post_forward(module);
  }

  void run_backward(Module& module, const std::vector<float>& y, const std::vector<float>& target) {
    hooks.pre_backward(module);
    for (Module& child : module.children | std::views::reverse) {
      run_backward(child, y, target);
    }
    backward(module, y, target);
    hooks.post_backward(module);
  }

  Module root_;
};

}  // namespace tiny
