#include "troupe/core/dtype.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace troupe {
namespace {

std::uint16_t rounded(std::uint32_t float_bits) {
  return to_bfloat16(std::bit_cast<float>(float_bits)).bits;
}

TEST_CASE("every bf16 survives the way to fp32 and back") {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    const BFloat16 back = to_bfloat16(to_float(value));
    const bool is_nan = std::isnan(to_float(value));
    const BFloat16 expected{static_cast<std::uint16_t>(is_nan ? bits | 0x40U : bits)};
    if (back != expected) {
      FAIL("bf16 ", bits, " came back as ", back.bits);
    }
  }
}

TEST_CASE("a float between two bf16 goes to the nearer one") {
  CHECK(rounded(0x3f807fffU) == 0x3f80U);
  CHECK(rounded(0x3f808001U) == 0x3f81U);
  CHECK(rounded(0xbf808001U) == 0xbf81U);
}

TEST_CASE("a float halfway between two bf16 goes to the even one") {
  CHECK(rounded(0x3f808000U) == 0x3f80U);
  CHECK(rounded(0x3f818000U) == 0x3f82U);
  CHECK(rounded(0xbf818000U) == 0xbf82U);
}

TEST_CASE("rounding carries into the exponent, and past the largest bf16 to infinity") {
  CHECK(rounded(0x3fffffffU) == 0x4000U);
  CHECK(std::isinf(to_float(to_bfloat16(std::numeric_limits<float>::max()))));
  CHECK(rounded(0xff7fffffU) == 0xff80U);
  CHECK(rounded(0x7f7f7fffU) == 0x7f7fU);  // just below halfway to infinity
}

TEST_CASE("infinities and signed zeros stay what they are") {
  CHECK(rounded(0x7f800000U) == 0x7f80U);
  CHECK(rounded(0xff800000U) == 0xff80U);
  CHECK(rounded(0x00000000U) == 0x0000U);
  CHECK(rounded(0x80000000U) == 0x8000U);
}

TEST_CASE("a NaN stays a NaN, also if only low bits say so") {
  CHECK(rounded(0x7f800001U) == 0x7fc0U);
  CHECK(rounded(0xff800001U) == 0xffc0U);
  CHECK(rounded(0x7fffffffU) == 0x7fffU);
  CHECK(rounded(0x7fc00000U) == 0x7fc0U);
}

TEST_CASE("subnormal floats round like all others") {
  CHECK(rounded(0x00000001U) == 0x0000U);
  CHECK(rounded(0x00008000U) == 0x0000U);
  CHECK(rounded(0x00018000U) == 0x0002U);
  CHECK(rounded(0x0000ffffU) == 0x0001U);
}

TEST_CASE("sizes and names of dtypes") {
  CHECK(size_of(DType::f32) == 4);
  CHECK(size_of(DType::bf16) == 2);
  CHECK(dtype_of<float> == DType::f32);
  CHECK(dtype_of<BFloat16> == DType::bf16);
}

}  // namespace
}  // namespace troupe
