// Sums, maxima and the exponential of rows of floats, in the fixed order of ops.hpp, [Note:
// determinism]. Pure functions for the loops of ops.cpp and attention.cpp; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numbers>

namespace gpt {

inline constexpr int64_t lane_count = 16;
using Lanes = std::array<float, lane_count>;

/// The partial sums added as a tree.
inline float sum(Lanes lanes) {
  for (size_t half = lane_count / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) {
      lanes[j] += lanes[j + half];
    }
  }
  return lanes[0];
}

/// Sum over i < numel of term(i), in the order of [Note: determinism].
template <class Term>
float sum_in_lanes(int64_t numel, Term term) {
  Lanes lanes{};
  const int64_t whole = numel / lane_count * lane_count;
  for (int64_t i = 0; i < whole; i += lane_count) {
    for (int64_t j = 0; j < lane_count; ++j) {
      lanes[static_cast<size_t>(j)] += term(i + j);
    }
  }
  for (int64_t i = whole; i < numel; ++i) {
    lanes[static_cast<size_t>(i - whole)] += term(i);
  }
  return sum(lanes);
}

/// The largest of x (numel), numel at least 1.
inline float max_of(const float* x, int64_t numel) {
  Lanes lanes;
  lanes.fill(x[0]);
  const int64_t whole = numel / lane_count * lane_count;
  for (int64_t i = 0; i < whole; i += lane_count) {
    for (int64_t j = 0; j < lane_count; ++j) {
      const auto lane = static_cast<size_t>(j);
      lanes[lane] = x[i + j] > lanes[lane] ? x[i + j] : lanes[lane];
    }
  }
  for (int64_t i = whole; i < numel; ++i) {
    lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  }
  return *std::ranges::max_element(lanes);
}

/// e^x within 2 ulp, x clamped to [-64, 64], NaN kept; no branches, so loops over it vectorise.
/// Reduction x = n ln 2 + r and the polynomial for e^r are those of Cephes expf (Moshier 1989).
/// e^-64 beside 1 is nothing in fp32; a wider range would let gelu multiply denormals, which made
/// it six times slower.
inline float exponential(float x) {
  constexpr float round_magic = 12582912.0F;   // 1.5 * 2^23: adding it rounds to an integer
  constexpr float ln2_high = 355.0F / 512.0F;  // exact times any n here
  constexpr float ln2_low = -2.12194440e-4F;   // ln 2 - ln2_high
  x = x > 64.0F ? 64.0F : x;
  x = x < -64.0F ? -64.0F : x;
  const float shifted = x * std::numbers::log2e_v<float> + round_magic;
  const float n = shifted - round_magic;
  const float r = (x - n * ln2_high) - n * ln2_low;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float e = (p * (r * r) + r) + 1.0F;
  // The low bits of `shifted` are n; as an exponent they are 2^n.
  const uint32_t n_bits = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(round_magic);
  return e * std::bit_cast<float>((n_bits + 127U) << 23U);
}

}  // namespace gpt
