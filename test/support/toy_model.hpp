/// A model small enough for thousands of runs, in which every value matters: each unit folds its
/// parameters and this rank's data into a running state, and its gradients depend on parameters,
/// state and data. A stale, foreign or half-written parameter changes every later value.
///
/// The gradients are not the derivatives of anything; the runtime does not care, and the reference
/// computes the same ones.
#pragma once

#include "troupe/core/model.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::test {

/// What a step of the toy depends on besides the parameters.
struct Data {
  int rank = 0;
  int step = 0;
  int micro_batch = 0;
};

inline float input(const Data& data, std::size_t unit, std::size_t i) {
  const std::size_t mixed = i * 7 + unit * 3 + static_cast<std::size_t>(data.rank) * 5 +
                            static_cast<std::size_t>(data.step) * 11 +
                            static_cast<std::size_t>(data.micro_batch) * 13;
  return static_cast<float>(mixed % 19) / 16.0F - 0.5F;
}

/// One rank's activations: a state per use of a unit.
class Activations {
 public:
  /// Forward of `unit` on its parameters, in the unit's order. Returns the new state.
  float forward(const Data& data,
                std::size_t unit,
                std::span<const std::span<const float>> parameters) {
    float sum = 0.0F;
    std::size_t i = 0;
    for (const auto& values : parameters) {
      for (const float value : values) {
        sum = sum + value * input(data, unit, i++);
      }
    }
    state_ = state_ * 0.5F + sum / (1.0F + (sum < 0 ? -sum : sum));
    return state_;
  }

  /// Gradient of the `i`-th element of `unit`, counted over its parameters.
  float gradient(const Data& data, std::size_t unit, std::size_t i, float parameter) const {
    return state_ * input(data, unit, i) + parameter * 0.0625F;
  }

  void backward_done(std::size_t unit) {
    state_ = state_ * 0.75F + static_cast<float>(unit) * 0.03125F;
  }
  float state() const { return state_; }

 private:
  float state_ = 1.0F;
};

inline float initial_value(std::string_view full_name, std::size_t i) {
  std::size_t hash = 17;
  for (const char c : full_name) {
    hash = (hash * 31 + static_cast<unsigned char>(c)) % 1009;
  }
  return static_cast<float>((hash + i * 29) % 101) / 64.0F - 0.75F;
}

/// For initial values and results: each expert has its own values of a parameter.
inline std::string name_of_copy(std::string_view full_name, int expert) {
  return std::string(full_name) + (expert > 0 ? "#" + std::to_string(expert) : "");
}

/// What a trainer does in one step, apart from the optimizer.
struct Op {
  enum Kind {
    forward,
    backward,
    begin_forward,
    begin_backward,
    end,  ///< of the use begun last
    begin_eval,
    end_eval,
    outside,     ///< as the first op: no micro-batch is opened for the program (an eval pass)
    not_reduced  ///< as the first op: the micro-batch does not reduce
  } kind = forward;
  std::size_t unit = 0;
  std::uint32_t untouched = 0;       ///< a backward contributes nothing to these parameters …
  std::uint32_t untouched_on = ~0U;  ///< … on these ranks; bits, as of the unit's parameters
  std::uint32_t absent_on = 0;       ///< a use that these ranks leave out

  bool absent(int rank) const { return (absent_on >> static_cast<unsigned>(rank) & 1U) != 0; }
  bool touches(std::size_t parameter, int rank) const {
    return parameter >= 32 ||  // more than can be told
           ((untouched >> parameter) & (untouched_on >> static_cast<unsigned>(rank)) & 1U) == 0;
  }
};
using MicroBatchProgram = std::vector<Op>;
using StepProgram = std::vector<MicroBatchProgram>;

inline bool opens_micro_batch(const MicroBatchProgram& program) {
  return program.empty() || program.front().kind != Op::outside;
}
inline bool reduces(const MicroBatchProgram& program) {
  return program.empty() || program.front().kind != Op::not_reduced;
}

/// Units in order forward, then reversed backward.
inline MicroBatchProgram plain_micro_batch(std::size_t units) {
  MicroBatchProgram program;
  for (std::size_t unit = 0; unit < units; ++unit) {
    program.push_back({Op::forward, unit});
  }
  for (std::size_t unit = units; unit-- > 0;) {
    program.push_back({Op::backward, unit});
  }
  return program;
}

inline StepProgram plain_step(std::size_t units, int micro_batches) {
  return StepProgram(static_cast<std::size_t>(micro_batches), plain_micro_batch(units));
}

/// A micro-batch for each letter: "r" reduces, "-" does not.
inline StepProgram accumulating_step(std::size_t units, std::string_view pattern) {
  StepProgram step;
  for (const char letter : pattern) {
    MicroBatchProgram& program = step.emplace_back(plain_micro_batch(units));
    if (letter == '-') {
      program.insert(program.begin(), {Op::not_reduced});
    }
  }
  return step;
}

/// Units of the given parameter sizes: names "u0", parameters "p0", "p1", …
inline Model toy_model(const std::vector<std::vector<std::int64_t>>& units,
                       DType dtype = DType::f32) {
  Model model;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const UnitId unit = model.add_unit("u" + std::to_string(u));
    for (std::size_t p = 0; p < units[u].size(); ++p) {
      model.add_parameter(
          unit, {.name = "p" + std::to_string(p), .shape = {units[u][p]}, .dtype = dtype});
    }
  }
  return model;
}

}  // namespace troupe::test
