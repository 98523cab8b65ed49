// What the tests of the GPT share: parameters in memory of their own, batches, temporary folders.
#pragma once

#include <troupe/examples/gpt/buffer.hpp>
#include <troupe/examples/gpt/hash.hpp>
#include <troupe/examples/gpt/model.hpp>
#include <troupe/examples/gpt/network.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gpt::test {

inline bool equal_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// Real in [-1, 1) that depends on its arguments alone.
inline float uniform(uint64_t stream, uint64_t index) {
  return static_cast<float>(mix(stream, index) >> 40U) * 0x1p-23F - 1.0F;
}

/// Memory for one tensor per parameter, each `shift` cache lines behind a page-free allocation.
class Tensors {
 public:
  explicit Tensors(const Config& config, size_t shift = 0) : shift_(shift * alignment_numel) {
    for (const UnitSpec& unit : units(config)) {
      auto& row = buffers_.emplace_back();
      for (const ParameterSpec& parameter : unit.parameters) {
        row.emplace_back(numel(parameter) + static_cast<int64_t>(shift_));
      }
    }
  }

  [[nodiscard]] size_t unit_count() const { return buffers_.size(); }
  [[nodiscard]] size_t count(size_t unit) const { return buffers_[unit].size(); }
  [[nodiscard]] std::span<float> at(size_t unit, size_t parameter) const {
    return buffers_[unit][parameter].span().subspan(shift_);
  }
  [[nodiscard]] std::vector<const float*> pointers(size_t unit) const {
    std::vector<const float*> all;
    all.reserve(count(unit));
    for (size_t i = 0; i < count(unit); ++i) {
      all.push_back(at(unit, i).data());
    }
    return all;
  }
  [[nodiscard]] std::vector<GradientOut> outs(size_t unit, bool accumulate) const {
    std::vector<GradientOut> all;
    all.reserve(count(unit));
    for (size_t i = 0; i < count(unit); ++i) {
      all.push_back({.data = at(unit, i).data(), .accumulate = accumulate});
    }
    return all;
  }

  /// Every element visited as fill(stream of the parameter, index).
  template <class Fill>
  void fill(Fill fill) const {
    for (size_t unit = 0; unit < unit_count(); ++unit) {
      for (size_t i = 0; i < count(unit); ++i) {
        const auto tensor = at(unit, i);
        for (size_t k = 0; k < tensor.size(); ++k) {
          tensor[k] = fill(mix(unit, i), k);
        }
      }
    }
  }

 private:
  size_t shift_;
  std::vector<std::vector<FloatBuffer>> buffers_;
};

/// Weights large enough that every part of the network matters: gains in [0.5, 1.5), everything
/// else in [-0.5, 0.5).
inline void fill_lively(const Config& config, const Tensors& weights) {
  weights.fill([](uint64_t stream, size_t k) { return 0.5F * uniform(stream, k); });
  const auto specs = units(config);
  for (size_t unit = 0; unit < specs.size(); ++unit) {
    for (size_t i = 0; i < specs[unit].parameters.size(); ++i) {
      if (specs[unit].parameters[i].init == ParameterSpec::Init::ones) {
        for (float& gain : weights.at(unit, i)) {
          gain += 1.0F;
        }
      }
    }
  }
}

struct Batch {
  std::vector<uint8_t> tokens, targets;
};

inline Batch random_batch(const Config& config, uint64_t seed) {
  Batch batch;
  for (uint64_t i = 0; std::cmp_less(i, config.batch * config.sequence); ++i) {
    batch.tokens.push_back(static_cast<uint8_t>(mix(seed, 2 * i)));
    batch.targets.push_back(static_cast<uint8_t>(mix(seed, 2 * i + 1)));
  }
  return batch;
}

inline void forward_all(Network& network, const Tensors& weights) {
  for (size_t unit = 0; unit < weights.unit_count(); ++unit) {
    network.forward(unit, weights.pointers(unit));
  }
}

inline void backward_all(Network& network,
                         const Tensors& weights,
                         const Tensors& gradients,
                         bool accumulate = false) {
  for (size_t unit = weights.unit_count(); unit-- > 0;) {
    network.backward(unit, weights.pointers(unit), gradients.outs(unit, accumulate));
  }
}

/// A folder of this process that is removed at the end.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() /
              ("troupe_" + name + "_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  TemporaryFolder(TemporaryFolder&&) = delete;
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path write(const std::string& name,
                                            const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace gpt::test
