/// Numbers of all kinds for the tests of kernels, and the sizes and offsets to try them at.
#pragma once

#include "draw.hpp"
#include "troupe/core/dtype.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace troupe::test {

inline constexpr std::int64_t sizes[] = {0, 1, 7, 63, 64, 65, 1000, 4097};
inline constexpr std::int64_t offsets[] = {0, 1, 3};  // in elements, from an aligned address

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline const float nan = std::numeric_limits<float>::quiet_NaN();

inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

inline std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::ranges::transform(values, bits.begin(), [](float value) { return bits_of(value); });
  return bits;
}

/// Rounding written out: the nearest bf16, of two equally near the even one.
inline std::uint16_t rounded_by_hand(float value) {
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>((bits_of(value) >> 16U) | 0x40U);
  }
  const std::uint32_t below = bits_of(value) & 0xffff0000U;
  const std::uint32_t rest = bits_of(value) & 0xffffU;
  const bool up = rest > 0x8000U || (rest == 0x8000U && (below & 0x10000U) != 0);
  return static_cast<std::uint16_t>((below >> 16U) + (up ? 1U : 0U));
}

/// Floats of all kinds: ordinary ones, ties between two bf16, subnormals, infinities, NaNs.
inline std::vector<float> all_kinds(std::int64_t numel, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(numel));
  for (float& value : values) {
    switch (random.below(8)) {
      case 0:
        value = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));  // anything
        break;
      case 1:  // a tie
        value = std::bit_cast<float>((static_cast<std::uint32_t>(random.next()) & 0x7fff0000U) |
                                     0x8000U);
        break;
      case 2:
        value = std::bit_cast<float>(static_cast<std::uint32_t>(random.below(1U << 23U)));
        break;
      case 3:
        value = one_in(random, 2) ? infinity : -infinity;
        break;
      case 4:
        value = std::numeric_limits<float>::max();
        break;
      default:
        value = real(random);
    }
  }
  return values;
}

inline std::vector<float> ordinary(std::int64_t numel, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(numel));
  for (float& value : values) {
    value = real(random) * (one_in(random, 4) ? 1e4F : 1.0F);
  }
  return values;
}

inline std::vector<BFloat16> as_bf16(const std::vector<float>& values) {
  std::vector<BFloat16> converted;
  converted.reserve(values.size());
  for (const float value : values) {
    converted.push_back(to_bfloat16(value));
  }
  return converted;
}

/// Calls `check(numel, offset)` for all sizes and offsets.
template <class Check>
void for_sizes_and_offsets(Check check) {
  for (const std::int64_t numel : sizes) {
    for (const std::int64_t offset : offsets) {
      CAPTURE(numel);
      CAPTURE(offset);
      check(numel, offset);
    }
  }
}

}  // namespace troupe::test
