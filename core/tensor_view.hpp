/// Views that a trainer computes with. They own nothing; each says how long it is valid.
#pragma once

#include "troupe/core/dtype.hpp"
#include "troupe/core/error.hpp"
#include "troupe/core/model.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// Unsharded values of one parameter, contiguous, row-major, in device memory.
struct TensorView {
  std::string_view name;  ///< as the unit knows it
  const Shape* shape = nullptr;
  DType dtype = DType::f32;
  const void* data = nullptr;
  std::int64_t numel = 0;

  /// The elements as `T` (float or BFloat16); an `Error` if the dtype is another.
  template <class T>
  std::span<const T> as() const {
    if (dtype != dtype_of<T>) {
      throw Error({.code = ErrorCode::misuse,
                   .text = "parameter '" + std::string(name) + "' is " + to_string(dtype) +
                           ", not " + to_string(dtype_of<T>)});
    }
    return {static_cast<const T*>(data), static_cast<std::size_t>(numel)};
  }
};

/// Where the gradient of one parameter goes, shaped like the parameter.
struct GradientView {
  std::string_view name;
  const Shape* shape = nullptr;
  DType dtype = DType::f32;  ///< that of gradient buffers (`Options::gradient_dtype`)
  void* data = nullptr;
  std::int64_t numel = 0;
  /// False: overwrite (nothing was contributed yet, the memory holds anything). True: add.
  bool accumulate = false;

  template <class T>
  std::span<T> as() const {
    if (dtype != dtype_of<T>) {
      throw Error({.code = ErrorCode::misuse,
                   .text = "the gradient of '" + std::string(name) + "' is " + to_string(dtype) +
                           ", not " + to_string(dtype_of<T>)});
    }
    return {static_cast<T*>(data), static_cast<std::size_t>(numel)};
  }
};

/// One whole parameter to be filled in or read, fp32, in host memory; valid during the call.
struct ParameterView {
  std::string_view name;  ///< full name, "block.0.wq"
  const Shape* shape = nullptr;
  std::span<float> data;
};

}  // namespace troupe
