/// Dtypes chosen apart, in every combination.
#pragma once

#include "troupe/runtime/options.hpp"

#include <array>
#include <string>
#include <vector>

namespace troupe::test {

struct Precision {
  DType parameters = DType::f32;
  DType buffers = DType::f32;
  DType wire = DType::f32;
  DType main_gradients = DType::f32;
  DType main_weights = DType::f32;
};

inline std::string text_of(const Precision& precision) {
  return std::string("parameters ") + to_string(precision.parameters) + ", gradients " +
         to_string(precision.buffers) + ", sent " + to_string(precision.wire) + ", main " +
         to_string(precision.main_gradients) + ", weights " + to_string(precision.main_weights);
}

/// Of fp32 parameters, main weights are fp32.
inline std::vector<Precision> precisions() {
  std::vector<Precision> all;
  constexpr std::array dtypes{DType::f32, DType::bf16};
  for (const DType parameters : dtypes) {
    for (const DType buffers : dtypes) {
      for (const DType wire : dtypes) {
        for (const DType main_gradients : dtypes) {
          all.push_back({parameters, buffers, wire, main_gradients, DType::f32});
          if (parameters == DType::bf16) {
            all.push_back({parameters, buffers, wire, main_gradients, DType::bf16});
          }
        }
      }
    }
  }
  return all;
}

inline Options with(const Precision& precision, Options options) {
  options.reduce_dtype = precision.wire;
  options.gradient_dtype = precision.buffers;
  options.main_gradient_dtype = precision.main_gradients;
  options.main_weight_dtype = precision.main_weights;
  return options;
}

}  // namespace troupe::test
