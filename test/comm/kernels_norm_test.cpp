// Squared norms: the order of their sums, and what they say of elements that are not finite.
#include "support/kernel_data.hpp"
#include "troupe/comm/kernels.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace troupe::test {
namespace {

double squared_norm_by_hand(const float* data, std::int64_t numel) {
  double lanes[kernels::squared_norm_lanes] = {};
  for (std::int64_t i = 0; i < numel; ++i) {
    const double value = data[i];
    lanes[static_cast<std::size_t>(i) % kernels::squared_norm_lanes] += value * value;
  }
  for (std::size_t half = kernels::squared_norm_lanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) {
      lanes[lane] += lanes[lane + half];
    }
  }
  return lanes[0];
}

TEST_CASE("squared_norm adds to the result, in fp64 and in a fixed order") {
  for_sizes_and_offsets([](std::int64_t numel, std::int64_t offset) {
    const auto data = ordinary(numel + offset, 6);
    double result = 2.5;
    bool non_finite = false;
    kernels::squared_norm(DType::f32, data.data() + offset, numel, &result, &non_finite);
    CHECK(result == 2.5 + squared_norm_by_hand(data.data() + offset, numel));
    CHECK_FALSE(non_finite);
  });
}

TEST_CASE("squared_norm of bf16 is that of the same numbers in fp32, also beyond one block") {
  for (const std::int64_t numel : {0, 1, 7, 16, 17, 2047, 2048, 2049, 5000}) {
    std::vector<BFloat16> narrow;
    std::vector<float> wide;
    for (std::int64_t i = 0; i < numel; ++i) {
      narrow.push_back(to_bfloat16(static_cast<float>(i % 13) - 6.0F));
      wide.push_back(to_float(narrow.back()));
    }
    double result = 0;
    bool non_finite = false;
    kernels::squared_norm(DType::bf16, narrow.data(), numel, &result, &non_finite);
    CHECK(result == squared_norm_by_hand(wide.data(), numel));
    CHECK_FALSE(non_finite);
    if (numel > 0) {
      narrow.back() = to_bfloat16(infinity);
      kernels::squared_norm(DType::bf16, narrow.data(), numel, &result, &non_finite);
      CHECK(non_finite);
    }
  }
}

TEST_CASE("squared_norm flags an infinity or a NaN wherever it is, and nothing else") {
  for (const std::int64_t numel : {1, 7, 16, 17, 64, 1000}) {
    for (const float bad : {nan, infinity, -infinity}) {
      for (const std::int64_t at : {std::int64_t{0}, numel / 2, numel - 1}) {
        std::vector<float> data(static_cast<std::size_t>(numel), 1.0F);
        data[static_cast<std::size_t>(at)] = bad;
        double result = 0;
        bool non_finite = false;
        kernels::squared_norm(DType::f32, data.data(), numel, &result, &non_finite);
        CHECK(non_finite);
      }
    }
    // The largest finite floats do not overflow in fp64; a flag set before stays.
    const std::vector<float> largest(static_cast<std::size_t>(numel),
                                     -std::numeric_limits<float>::max());
    double result = 0;
    bool non_finite = false;
    kernels::squared_norm(DType::f32, largest.data(), numel, &result, &non_finite);
    CHECK_FALSE(non_finite);
    CHECK(std::isfinite(result));
    non_finite = true;
    kernels::squared_norm(DType::f32, largest.data(), numel, &result, &non_finite);
    CHECK(non_finite);
  }
}

}  // namespace
}  // namespace troupe::test
