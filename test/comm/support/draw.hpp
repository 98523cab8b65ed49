/// Draws that the tests of this room need besides those of test/support/random.hpp.
#pragma once

#include "troupe/test/support/random.hpp"

namespace troupe::test {

inline bool one_in(Random& random, std::uint64_t count) {
  return random.below(count) == 0;
}

/// In [-1, 1), a multiple of 2⁻²³: sums depend on their order.
inline float real(Random& random) {
  return static_cast<float>(random.below(1U << 24U)) / 8388608.0F - 1.0F;
}

}  // namespace troupe::test
