// Asks whether the BLAS that was found multiplies matrices correctly on this processor.
// Some do not: OpenBLAS 0.3.20, for one, computes wrong results on the Xeon 6448H, newer than it
// (rocker-org/rocker-versioned2, issue 836), and training on such a build fails in confusing ways.
// Called once by main, before any Network; allocates its own matrices and frees them.
#pragma once

#include "model.hpp"
#include "ops.hpp"

#include <optional>
#include <string>

namespace gpt {

/// The product to check; tests give a wrong one.
using ProductFunction = void (*)(const Product&);

/// Compares every kind of product that a Network of `config` computes (sizes, strides, transposes,
/// alpha, beta) with plain loops: small integers, where both must be equal, then random values
/// within the rounding bound of any order of summation. Returns one line that names the first wrong
/// element; empty when all is well. Less than half a second at the default
/// sizes.
std::optional<std::string> check_blas(const Config& config = {},
                                      ProductFunction product = matrix_product);

}  // namespace gpt
