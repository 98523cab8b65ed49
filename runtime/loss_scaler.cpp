#include "troupe/runtime/loss_scaler.hpp"

#include "troupe/core/error.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace troupe {

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options) {
  const auto check = [](bool holds, const char* field, float value, const char* expected) {
    if (!holds) {
      throw Error({.code = ErrorCode::bad_configuration,
                   .text = std::string("LossScalerOptions::") + field + " is " +
                           std::to_string(value) + "; expected " + expected});
    }
  };
  check(std::isfinite(options.scale_min) && options.scale_min > 0, "scale_min", options.scale_min,
        "a finite number above 0");
  check(std::isfinite(options.scale_max) && options.scale_max >= options.scale_min, "scale_max",
        options.scale_max, "a finite number, not below scale_min");
  check(options.scale >= options.scale_min && options.scale <= options.scale_max, "scale",
        options.scale, "a number from scale_min to scale_max");
  check(std::isfinite(options.growth) && options.growth >= 1, "growth", options.growth,
        "a finite number, 1 or more");
  check(options.backoff > 0 && options.backoff < 1, "backoff", options.backoff,
        "a number above 0 and below 1");
  check(options.growth_interval > 0, "growth_interval", 0, "1 or more");
  state_.scale = options.scale;
}

bool LossScaler::update(bool finite) {
  if (!finite) {
    state_ = {std::max(state_.scale * options_.backoff, options_.scale_min), 0};
  } else if (++state_.finite_steps >= options_.growth_interval) {
    state_ = {std::min(state_.scale * options_.growth, options_.scale_max), 0};
  }
  return finite;
}

}  // namespace troupe
