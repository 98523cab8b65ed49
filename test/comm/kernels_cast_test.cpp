// Casts between dtypes: every bit as rounding by hand has it.
#include "support/kernel_data.hpp"
#include "troupe/comm/kernels.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace troupe::test {
namespace {

TEST_CASE("a cast to bf16 rounds each element to nearest even and keeps NaN") {
  for_sizes_and_offsets([](std::int64_t numel, std::int64_t offset) {
    const auto from = all_kinds(numel + offset, 1);
    std::vector<BFloat16> to(from.size() + 1, BFloat16{0x1234});
    kernels::cast(DType::f32, from.data() + offset, DType::bf16, to.data() + offset, numel);
    for (std::size_t i = 0; i < to.size(); ++i) {
      const bool inside = i >= static_cast<std::size_t>(offset) && i < from.size();
      REQUIRE(to[i].bits == (inside ? rounded_by_hand(from[i]) : 0x1234));
      if (inside) {
        REQUIRE(to[i] == to_bfloat16(from[i]));
      }
    }
  });
}

TEST_CASE("a cast to bf16 is right for every pattern of the upper half and the ties around it") {
  std::vector<float> from;
  for (std::uint32_t upper = 0; upper < 0x10000U; ++upper) {
    for (const std::uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      from.push_back(std::bit_cast<float>((upper << 16U) | lower));
    }
  }
  std::vector<BFloat16> to(from.size());
  kernels::cast(DType::f32, from.data(), DType::bf16, to.data(),
                static_cast<std::int64_t>(from.size()));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    wrong += to[i].bits == rounded_by_hand(from[i]) ? 0U : 1U;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a cast from bf16 is exact, bit by bit") {
  std::vector<BFloat16> from;
  from.reserve(0x10000U);
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    from.push_back({static_cast<std::uint16_t>(bits)});
  }
  std::vector<float> to(from.size());
  kernels::cast(DType::bf16, from.data(), DType::f32, to.data(),
                static_cast<std::int64_t>(from.size()));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    wrong += bits_of(to[i]) == static_cast<std::uint32_t>(from[i].bits) << 16U ? 0U : 1U;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a cast between equal dtypes is a copy, in place too") {
  auto values = all_kinds(65, 2);
  std::vector<float> to(values.size());
  kernels::cast(DType::f32, values.data(), DType::f32, to.data(), 65);
  CHECK(bits_of(to) == bits_of(values));
  kernels::cast(DType::f32, to.data(), DType::f32, to.data(), 65);
  CHECK(bits_of(to) == bits_of(values));
}

}  // namespace
}  // namespace troupe::test
