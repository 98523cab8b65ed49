/// Dynamic loss scaling: the loss is multiplied by a factor so that small gradients do not vanish
/// in a narrow dtype, and the factor follows what the gradients can bear.
///
///     troupe::LossScaler scaler;
///     … backward of loss · scaler.scale() …
///     runtime.finish_gradients(scaler.scale());
///     if (scaler.update(runtime.gradient_norm().finite)) { optimizer.step(runtime); }
///     else { runtime.skip_update(); }
///
/// A value: no threads, no communication. Every rank has its own, which stay equal because the
/// verdict is. Factors are powers of two by default, so that scaling is exact.
#pragma once

#include <cstdint>

namespace troupe {

struct LossScalerOptions {
  float scale = 65536.0F;  ///< at first
  float growth = 2.0F;     ///< factor after `growth_interval` finite steps in a row; ≥ 1
  float backoff = 0.5F;    ///< factor after a step that is not finite; above 0, below 1
  std::uint64_t growth_interval = 2000;  ///< ≥ 1
  float scale_min = 1.0F;
  float scale_max = 16777216.0F;
};

class LossScaler {
 public:
  /// What a checkpoint keeps.
  struct State {
    float scale = 1.0F;
    std::uint64_t finite_steps = 0;  ///< in a row, since the scale last changed
    bool operator==(const State&) const = default;
  };

  /// `Error` (bad_configuration) names the option.
  explicit LossScaler(const LossScalerOptions& options = {});

  float scale() const { return state_.scale; }
  /// A step has ended. Returns whether its gradients may be used: `finite`.
  bool update(bool finite);

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  LossScalerOptions options_;
  State state_;
};

}  // namespace troupe
