#include "troupe/comm/kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

// Each loop is compiled for several instruction sets; the loader picks one. Sanitizers are not
// ready yet when it does.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define TROUPE_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TROUPE_SANITIZED
#endif
#if defined(__x86_64__) && defined(__linux__) && defined(__OPTIMIZE__) && !defined(TROUPE_SANITIZED)
#define TROUPE_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define TROUPE_CLONES
#endif

// No iteration reads what another one writes, though two pointers may be equal.
#if !defined(__OPTIMIZE__) || defined(TROUPE_SANITIZED)
#define TROUPE_INDEPENDENT_ITERATIONS
#elif defined(__clang__)
#define TROUPE_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define TROUPE_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace troupe::kernels {

// Not in an unnamed namespace: what is compiled several times needs a name for the loader.
namespace loops {
void f32_to_bf16(const float* from, BFloat16* to, std::int64_t numel);
void bf16_to_f32(const BFloat16* from, float* to, std::int64_t numel);
void add_f32(const float* a, const float* b, float* to, std::int64_t numel);
void add_bf16(const BFloat16* a, const BFloat16* b, float* to, std::int64_t numel);
void add_bf16_to_f32(const float* a, const BFloat16* b, float* to, std::int64_t numel);
void add_two_bf16_to_f32(
    const float* a, const BFloat16* b, const BFloat16* c, float* to, std::int64_t numel);
void round_sum(const BFloat16* a, const BFloat16* b, BFloat16* to, std::int64_t numel);
void round_sum(const float* a, const BFloat16* b, BFloat16* to, std::int64_t numel);
void round_sum(
    const float* a, const BFloat16* b, const BFloat16* c, BFloat16* to, std::int64_t numel);
void divide(float* data, std::int64_t numel, float divisor);
void divide(BFloat16* data, std::int64_t numel, float divisor);
void add_squares(const float* data, std::int64_t blocks, double* lanes);

TROUPE_CLONES void f32_to_bf16(const float* from, BFloat16* to, std::int64_t numel) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    to[i] = to_bfloat16(from[i]);
  }
}

TROUPE_CLONES void bf16_to_f32(const BFloat16* from, float* to, std::int64_t numel) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    to[i] = to_float(from[i]);
  }
}

TROUPE_CLONES void add_f32(const float* a, const float* b, float* to, std::int64_t numel) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    to[i] = a[i] + b[i];
  }
}

TROUPE_CLONES void add_bf16(const BFloat16* a, const BFloat16* b, float* to, std::int64_t numel) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    to[i] = to_float(a[i]) + to_float(b[i]);
  }
}

TROUPE_CLONES void add_bf16_to_f32(const float* a,
                                   const BFloat16* b,
                                   float* to,
                                   std::int64_t numel) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    to[i] = a[i] + to_float(b[i]);
  }
}

TROUPE_CLONES void add_two_bf16_to_f32(
    const float* a, const BFloat16* b, const BFloat16* c, float* to, std::int64_t numel) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    to[i] = (a[i] + to_float(b[i])) + to_float(c[i]);
  }
}

TROUPE_CLONES void round_sum(const BFloat16* a,
                             const BFloat16* b,
                             BFloat16* to,
                             std::int64_t numel) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    to[i] = to_bfloat16(to_float(a[i]) + to_float(b[i]));
  }
}

TROUPE_CLONES void round_sum(const float* a, const BFloat16* b, BFloat16* to, std::int64_t numel) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    to[i] = to_bfloat16(a[i] + to_float(b[i]));
  }
}

TROUPE_CLONES void round_sum(
    const float* a, const BFloat16* b, const BFloat16* c, BFloat16* to, std::int64_t numel) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    to[i] = to_bfloat16((a[i] + to_float(b[i])) + to_float(c[i]));
  }
}

TROUPE_CLONES void divide(float* data, std::int64_t numel, float divisor) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    data[i] = data[i] / divisor;
  }
}

TROUPE_CLONES void divide(BFloat16* data, std::int64_t numel, float divisor) {
  TROUPE_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < numel; ++i) {
    data[i] = to_bfloat16(to_float(data[i]) / divisor);
  }
}

TROUPE_CLONES void add_squares(const float* data, std::int64_t blocks, double* lanes) {
  std::array<double, squared_norm_lanes> sums;
  std::copy_n(lanes, squared_norm_lanes, sums.begin());
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::size_t lane = 0; lane < squared_norm_lanes; ++lane) {
      const double value = data[lane];
      sums[lane] += value * value;
    }
    data += squared_norm_lanes;
  }
  std::copy_n(sums.begin(), squared_norm_lanes, lanes);
}

}  // namespace loops

namespace {

/// Elements of the running sum that are kept while all sources are added: 8 KiB, a quarter of the
/// smallest first-level cache in use.
constexpr std::int64_t block_numel = 2048;

using Block = std::array<float, block_numel>;

template <class T>
const T* source(std::span<const void* const> sources, std::size_t index, std::int64_t offset) {
  return static_cast<const T*>(sources[index]) + offset;
}

}  // namespace

void cast(
    DType from_dtype, const void* from, DType to_dtype, void* to, std::int64_t numel) noexcept {
  if (from_dtype == to_dtype) {
    copy(to, from, numel * static_cast<std::int64_t>(size_of(to_dtype)));
  } else if (to_dtype == DType::bf16) {
    loops::f32_to_bf16(static_cast<const float*>(from), static_cast<BFloat16*>(to), numel);
  } else {
    loops::bf16_to_f32(static_cast<const BFloat16*>(from), static_cast<float*>(to), numel);
  }
}

void accumulate(
    DType sum_dtype, void* sum, DType dtype, const void* part, std::int64_t numel) noexcept {
  const bool narrow = dtype == DType::bf16;
  if (sum_dtype == DType::f32) {
    auto* to = static_cast<float*>(sum);
    narrow ? loops::add_bf16_to_f32(to, static_cast<const BFloat16*>(part), to, numel)
           : loops::add_f32(to, static_cast<const float*>(part), to, numel);
  } else {
    auto* to = static_cast<BFloat16*>(sum);
    narrow ? loops::round_sum(to, static_cast<const BFloat16*>(part), to, numel)
           : loops::round_sum(static_cast<const float*>(part), to, to, numel);
  }
}

void divide(DType dtype, void* data, std::int64_t numel, float divisor) noexcept {
  if (dtype == DType::f32) {
    loops::divide(static_cast<float*>(data), numel, divisor);
  } else {
    loops::divide(static_cast<BFloat16*>(data), numel, divisor);
  }
}

void squared_norm(
    DType dtype, const void* data, std::int64_t numel, double* result, bool* non_finite) noexcept {
  constexpr auto lanes = static_cast<std::int64_t>(squared_norm_lanes);
  static_assert(block_numel % lanes == 0);
  std::array<double, squared_norm_lanes> sums{};
  Block widened;
  for (std::int64_t offset = 0; offset < numel; offset += block_numel) {
    const std::int64_t count = std::min(block_numel, numel - offset);
    const float* block = widened.data();
    if (dtype == DType::f32) {
      block = static_cast<const float*>(data) + offset;
    } else {
      loops::bf16_to_f32(static_cast<const BFloat16*>(data) + offset, widened.data(), count);
    }
    const std::int64_t whole = count / lanes * lanes;
    loops::add_squares(block, count / lanes, sums.data());
    for (std::int64_t i = whole; i < count; ++i) {
      const double value = block[i];
      sums[static_cast<std::size_t>(i - whole)] += value * value;
    }
  }
  for (std::size_t half = squared_norm_lanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) {
      sums[lane] += sums[lane + half];
    }
  }
  // The square of the largest float is 1.2e77, so no sum of finite elements overflows.
  if (!std::isfinite(sums[0])) {
    *non_finite = true;
  }
  *result += sums[0];
}

namespace {

// `to` is written after all sources were read, so it may be any of them.

void sum_f32(std::span<const void* const> sources, float* to, std::int64_t numel) {
  const std::size_t last = sources.size() - 1;
  Block running;
  for (std::int64_t offset = 0; offset < numel; offset += block_numel) {
    const std::int64_t count = std::min(block_numel, numel - offset);
    const auto* sum_so_far = source<float>(sources, 0, offset);
    for (std::size_t index = 1; index < last; ++index) {
      loops::add_f32(sum_so_far, source<float>(sources, index, offset), running.data(), count);
      sum_so_far = running.data();
    }
    loops::add_f32(sum_so_far, source<float>(sources, last, offset), to + offset, count);
  }
}

void sum_bf16(std::span<const void* const> sources, BFloat16* to, std::int64_t numel) {
  const std::size_t end = sources.size();
  Block running;
  float* const sums = running.data();
  for (std::int64_t offset = 0; offset < numel; offset += block_numel) {
    const std::int64_t count = std::min(block_numel, numel - offset);
    const auto at = [&](std::size_t index) { return source<BFloat16>(sources, index, offset); };
    if (end == 2) {
      loops::round_sum(at(0), at(1), to + offset, count);
      continue;
    }
    loops::add_bf16(at(0), at(1), sums, count);
    std::size_t next = 2;
    for (; next + 2 < end; next += 2) {
      loops::add_two_bf16_to_f32(sums, at(next), at(next + 1), sums, count);
    }
    if (next + 2 == end) {
      loops::round_sum(sums, at(next), at(next + 1), to + offset, count);
    } else {
      loops::round_sum(sums, at(next), to + offset, count);
    }
  }
}

}  // namespace

void sum(std::span<const void* const> sources, DType dtype, void* to, std::int64_t numel) noexcept {
  if (sources.size() == 1) {
    copy(to, sources[0], numel * static_cast<std::int64_t>(size_of(dtype)));
  } else if (dtype == DType::f32) {
    sum_f32(sources, static_cast<float*>(to), numel);
  } else {
    sum_bf16(sources, static_cast<BFloat16*>(to), numel);
  }
}

void copy(void* to, const void* from, std::int64_t bytes) noexcept {
  if (bytes > 0 && to != from) {
    std::memmove(to, from, static_cast<std::size_t>(bytes));
  }
}

void zero(void* data, std::int64_t bytes) noexcept {
  if (bytes > 0) {
    std::memset(data, 0, static_cast<std::size_t>(bytes));
  }
}

}  // namespace troupe::kernels
