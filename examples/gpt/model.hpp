// What the byte-level GPT consists of: sizes, units, parameters and their initial values.
// Values and pure functions only; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gpt {

/// Tokens are bytes.
inline constexpr int64_t vocabulary = 256;

/// Sizes of the model and of what one rank computes in one micro-batch.
struct Config {
  int64_t layers = 6;      // blocks
  int64_t width = 128;     // numel of one token's residual vector
  int64_t heads = 4;       // divides width
  int64_t sequence = 128;  // tokens in one sequence
  int64_t batch = 4;       // sequences per rank and micro-batch

  bool operator==(const Config&) const = default;
};

/// One line that says which size is wrong and why; empty when `config` can be used.
std::optional<std::string> validate(const Config& config);

/// One parameter: its name inside the unit, shape (row-major) and initial distribution.
struct ParameterSpec {
  enum class Init : uint8_t { zeros, ones, normal };

  std::string name;
  std::vector<int64_t> shape;
  Init init = Init::zeros;
  float stddev = 0;  // of Init::normal, mean 0

  bool operator==(const ParameterSpec&) const = default;
};

/// Parameters that are used together: gathered, computed with and released as one.
struct UnitSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;

  bool operator==(const UnitSpec&) const = default;
};

/// Places of the parameters in the units' lists, for indexing weights and gradients.
namespace embed {
enum Parameter : size_t { tok, pos, count };
}
namespace block {
enum Parameter : size_t {
  ln1_g,
  ln1_b,
  wqkv,
  bqkv,
  wo,
  bo,
  ln2_g,
  ln2_b,
  w_up,
  b_up,
  w_down,
  b_down,
  count
};
}
namespace head {
enum Parameter : size_t { lnf_g, lnf_b, w_out, count };
}

/// The units in the order of the forward pass: "embed", "block.0" .. "block.N-1", "head".
/// Pre-norm blocks as in GPT-2 (Radford et al. 2019); the output matrix is not tied to `tok`.
/// `config` is valid.
std::vector<UnitSpec> units(const Config& config);

/// Product of the shape.
int64_t numel(const ParameterSpec& parameter);

/// Numel of the largest parameter of all units.
int64_t numel_max(std::span<const UnitSpec> specs);

/// The name that seeds the initial values, for instance "block.0.wqkv".
std::string full_name(const UnitSpec& unit, const ParameterSpec& parameter);

/// Writes the initial values of elements [first, first + out.size()) of a parameter.
/// Each element depends on `seed`, `full_name` and its index alone, so any part of a parameter can
/// be written without the rest. Normal values by Box and Muller (1958) in double, then rounded.
void initialize(const ParameterSpec& parameter,
                const std::string& full_name,
                uint64_t seed,
                std::span<float> out,
                int64_t first = 0);

}  // namespace gpt
