/// Element types and their conversions on the host.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace troupe {

enum class DType : std::uint8_t { f32, bf16 };

constexpr std::size_t size_of(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

constexpr const char* to_string(DType dtype) {
  return dtype == DType::f32 ? "fp32" : "bf16";
}

/// A bfloat16 is the upper half of a float; kept as bits, since the host does no arithmetic on it.
struct BFloat16 {
  std::uint16_t bits = 0;
  bool operator==(const BFloat16&) const = default;
};
static_assert(sizeof(BFloat16) == 2);

constexpr float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to nearest, ties to even, as IEEE 754 does; a NaN stays a (quiet) NaN.
constexpr BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t quieted = bits | 0x400000U;
  const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  // Written as a choice between words of one width: a loop over this becomes vector code.
  const bool is_nan = value != value;
  return {static_cast<std::uint16_t>((is_nan ? quieted : rounded) >> 16)};
}

/// The dtype of a C++ element type, for checked views.
template <class T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bf16;

}  // namespace troupe
