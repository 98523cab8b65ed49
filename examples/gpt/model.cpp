#include "model.hpp"

#include "hash.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

namespace gpt {

namespace {

// Standard deviation of GPT-2's matrices and embeddings (Radford et al. 2019, released code).
constexpr float stddev_default = 0.02F;

ParameterSpec zeros(std::string name, std::vector<int64_t> shape) {
  return {std::move(name), std::move(shape), ParameterSpec::Init::zeros, 0};
}

ParameterSpec ones(std::string name, std::vector<int64_t> shape) {
  return {std::move(name), std::move(shape), ParameterSpec::Init::ones, 0};
}

ParameterSpec normal(std::string name, std::vector<int64_t> shape, float stddev = stddev_default) {
  return {std::move(name), std::move(shape), ParameterSpec::Init::normal, stddev};
}

std::vector<ParameterSpec> block_parameters(const Config& config) {
  const int64_t w = config.width;
  // Two projections per block add to the residual; this keeps its variance independent of depth
  // (Radford et al. 2019, section 2.3).
  const auto stddev_residual = static_cast<float>(
      static_cast<double>(stddev_default) / std::sqrt(2.0 * static_cast<double>(config.layers)));
  return {ones("ln1_g", {w}),
          zeros("ln1_b", {w}),
          normal("wqkv", {3 * w, w}),
          zeros("bqkv", {3 * w}),
          normal("wo", {w, w}, stddev_residual),
          zeros("bo", {w}),
          ones("ln2_g", {w}),
          zeros("ln2_b", {w}),
          normal("w_up", {4 * w, w}),
          zeros("b_up", {4 * w}),
          normal("w_down", {w, 4 * w}, stddev_residual),
          zeros("b_down", {w})};
}

/// A standard normal value that depends on `stream` and `index` alone.
double normal_value(uint64_t stream, uint64_t index) {
  constexpr double ulp = 0x1p-53;
  const uint64_t first = mix(stream, 2 * index);
  const uint64_t second = mix(stream, 2 * index + 1);
  const double radius_uniform = static_cast<double>((first >> 11U) + 1) * ulp;  // (0, 1]
  const double angle_uniform = static_cast<double>(second >> 11U) * ulp;        // [0, 1)
  return std::sqrt(-2.0 * std::log(radius_uniform)) *
         std::cos(2.0 * std::numbers::pi * angle_uniform);
}

}  // namespace

std::optional<std::string> validate(const Config& config) {
  struct Limit {
    const char* name;
    int64_t value;
    int64_t max;
  };
  // Far above what the example is for; they keep every product below within 64 bits.
  const std::array<Limit, 5> limits{{{"layers", config.layers, 1024},
                                     {"width", config.width, 16384},
                                     {"heads", config.heads, 1024},
                                     {"sequence", config.sequence, 16384},
                                     {"batch", config.batch, 16384}}};
  for (const Limit& limit : limits) {
    if (limit.value < 1 || limit.value > limit.max) {
      return std::string(limit.name) + " is " + std::to_string(limit.value) +
             ", must be from 1 to " + std::to_string(limit.max);
    }
  }
  if (config.width % config.heads != 0) {
    return "heads " + std::to_string(config.heads) + " does not divide width " +
           std::to_string(config.width);
  }
  const int64_t numel_largest =
      config.batch * config.sequence * std::max({4 * config.width, vocabulary, config.sequence});
  if (numel_largest > std::numeric_limits<int32_t>::max()) {
    return "batch " + std::to_string(config.batch) + " x sequence " +
           std::to_string(config.sequence) + " x width " + std::to_string(config.width) +
           " is too large: one activation would have " + std::to_string(numel_largest) +
           " elements, at most 2^31 - 1 are possible";
  }
  return std::nullopt;
}

std::vector<UnitSpec> units(const Config& config) {
  const int64_t w = config.width;
  std::vector<UnitSpec> specs;
  specs.push_back({"embed", {normal("tok", {vocabulary, w}), normal("pos", {config.sequence, w})}});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    specs.push_back({"block." + std::to_string(layer), block_parameters(config)});
  }
  specs.push_back(
      {"head", {ones("lnf_g", {w}), zeros("lnf_b", {w}), normal("w_out", {vocabulary, w})}});
  return specs;
}

int64_t numel(const ParameterSpec& parameter) {
  return std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1},
                         std::multiplies<>());
}

int64_t numel_max(std::span<const UnitSpec> specs) {
  int64_t largest = 0;
  for (const UnitSpec& unit : specs) {
    for (const ParameterSpec& parameter : unit.parameters) {
      largest = std::max(largest, numel(parameter));
    }
  }
  return largest;
}

std::string full_name(const UnitSpec& unit, const ParameterSpec& parameter) {
  return unit.name + "." + parameter.name;
}

void initialize(const ParameterSpec& parameter,
                const std::string& full_name,
                uint64_t seed,
                std::span<float> out,
                int64_t first) {
  switch (parameter.init) {
    case ParameterSpec::Init::zeros:
      std::ranges::fill(out, 0.0F);
      return;
    case ParameterSpec::Init::ones:
      std::ranges::fill(out, 1.0F);
      return;
    case ParameterSpec::Init::normal:
      break;
  }
  const uint64_t stream = mix(seed, hash_text(full_name));
  for (size_t i = 0; i < out.size(); ++i) {
    const double value = normal_value(stream, static_cast<uint64_t>(first) + i);
    out[i] = static_cast<float>(static_cast<double>(parameter.stddev) * value);
  }
}

}  // namespace gpt
