// A fixed block of floats that begins on a cache line; zero at first.
// Moves with its owner, never copied; a moved-from buffer is only assigned to or destroyed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

namespace gpt {

/// Alignment of every buffer, in bytes and in floats.
inline constexpr size_t alignment_bytes = 64;
inline constexpr int64_t alignment_numel = 16;

/// The smallest multiple of `alignment_numel` that holds `numel` floats.
constexpr int64_t padded(int64_t numel) {
  return (numel + alignment_numel - 1) / alignment_numel * alignment_numel;
}

class FloatBuffer {
 public:
  FloatBuffer() = default;
  /// numel >= 0; throws std::bad_alloc.
  explicit FloatBuffer(int64_t numel)
      : numel_(static_cast<size_t>(numel)),
        data_(static_cast<float*>(::operator new(std::max<size_t>(numel_, 1) * sizeof(float),
                                                 std::align_val_t{alignment_bytes}))) {
    std::fill_n(data_.get(), numel_, 0.0F);
  }

  [[nodiscard]] float* data() const { return data_.get(); }
  [[nodiscard]] size_t size() const { return numel_; }
  [[nodiscard]] std::span<float> span() const { return {data_.get(), numel_}; }

 private:
  struct Free {
    void operator()(float* data) const {
      ::operator delete(data, std::align_val_t{alignment_bytes});
    }
  };

  size_t numel_ = 0;
  std::unique_ptr<float, Free> data_;
};

}  // namespace gpt
