// Tests of examples/gpt/blas_check.hpp: wrong products are planted and must be found.
#include <troupe/examples/gpt/blas_check.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

namespace gpt::test {

namespace {

constexpr Config small{.layers = 1, .width = 12, .heads = 3, .sequence = 7, .batch = 2};

void forgets_last_element(const Product& p) {
  matrix_product(p);
  p.c[(p.m - 1) * p.c_stride + p.n - 1] = 0.25F;
}

void ignores_beta(const Product& p) {
  Product wrong = p;
  wrong.beta = 0;
  matrix_product(wrong);
}

void ignores_transpose_of_a(const Product& p) {
  Product wrong = p;
  if (wrong.m == wrong.k) {
    wrong.a_transposed = false;
  }
  matrix_product(wrong);
}

// As a product in bf16 would: exact for small integers, too coarse for anything else.
void rounds_result_to_8_bits(const Product& p) {
  matrix_product(p);
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      float& c = p.c[i * p.c_stride + j];
      int exponent = 0;
      const float mantissa = std::frexp(c, &exponent);
      if (c != std::round(c)) {
        c = std::ldexp(std::round(mantissa * 256.0F) / 256.0F, exponent);
      }
    }
  }
}

void writes_not_a_number(const Product& p) {
  matrix_product(p);
  p.c[0] = std::nanf("");
}

}  // namespace

TEST_CASE("the BLAS library multiplies correctly at the default sizes") {
  const auto error = check_blas();
  CHECK_MESSAGE(!error, error.value_or(""));
}

TEST_CASE("the BLAS library multiplies correctly at odd sizes") {
  for (const int64_t size : {1, 2, 3, 7, 15, 33}) {
    const auto error =
        check_blas({.layers = 1, .width = size, .heads = 1, .sequence = size + 1, .batch = 1});
    CHECK_MESSAGE(!error, error.value_or(""));
  }
}

TEST_CASE("a wrong product is found and described in one line") {
  const std::string error = check_blas(small, forgets_last_element).value_or("");
  CHECK(error.find("linear (14, 12) x (12, 36), element (13, 35) is 0.25") != std::string::npos);
  CHECK(error.find('\n') == std::string::npos);
}

TEST_CASE("a product that ignores an argument is found") {
  CHECK(check_blas(small, ignores_beta));
  CHECK(check_blas(small, ignores_transpose_of_a));
}

TEST_CASE("a product of too few bits is found") {
  CHECK(check_blas(small, rounds_result_to_8_bits));
}

TEST_CASE("a product that is not a number is found") {
  CHECK(check_blas(small, writes_not_a_number));
}

}  // namespace gpt::test
