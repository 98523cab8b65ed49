#include "troupe/comm/kernels.hpp"

#include "support/draw.hpp"
#include "support/settle.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace troupe {
namespace {

using test::one_in;
using test::Random;
using test::real;

constexpr std::int64_t sizes[] = {0, 1, 7, 63, 64, 65, 1000, 4097};
constexpr std::int64_t offsets[] = {0, 1, 3};  // in elements, from an aligned address

constexpr float infinity = std::numeric_limits<float>::infinity();
const float nan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::ranges::transform(values, bits.begin(), [](float value) { return bits_of(value); });
  return bits;
}

/// Rounding written out: the nearest bf16, of two equally near the even one.
std::uint16_t rounded_by_hand(float value) {
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>((bits_of(value) >> 16U) | 0x40U);
  }
  const std::uint32_t below = bits_of(value) & 0xffff0000U;
  const std::uint32_t rest = bits_of(value) & 0xffffU;
  const bool up = rest > 0x8000U || (rest == 0x8000U && (below & 0x10000U) != 0);
  return static_cast<std::uint16_t>((below >> 16U) + (up ? 1U : 0U));
}

/// Floats of all kinds: ordinary ones, ties between two bf16, subnormals, infinities, NaNs.
std::vector<float> all_kinds(std::int64_t numel, std::uint64_t seed) {
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

std::vector<float> ordinary(std::int64_t numel, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(numel));
  for (float& value : values) {
    value = real(random) * (one_in(random, 4) ? 1e4F : 1.0F);
  }
  return values;
}

std::vector<BFloat16> as_bf16(const std::vector<float>& values) {
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

TEST_CASE("accumulate adds in fp32, element by element, and rounds a bf16 sum once") {
  for_sizes_and_offsets([](std::int64_t numel, std::int64_t offset) {
    const auto part = ordinary(numel + offset, 3);
    const auto part_bf16 = as_bf16(part);
    const auto before = ordinary(numel + offset, 4);
    auto sum = before;
    auto sum_bf16 = before;
    const auto narrow_before = as_bf16(before);
    auto narrow_sum = narrow_before;
    auto narrow_sum_bf16 = narrow_before;
    kernels::accumulate(DType::f32, sum.data() + offset, DType::f32, part.data() + offset, numel);
    kernels::accumulate(DType::f32, sum_bf16.data() + offset, DType::bf16,
                        part_bf16.data() + offset, numel);
    kernels::accumulate(DType::bf16, narrow_sum.data() + offset, DType::f32, part.data() + offset,
                        numel);
    kernels::accumulate(DType::bf16, narrow_sum_bf16.data() + offset, DType::bf16,
                        part_bf16.data() + offset, numel);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const bool inside = i >= static_cast<std::size_t>(offset);
      REQUIRE(sum[i] == (inside ? before[i] + part[i] : before[i]));
      REQUIRE(sum_bf16[i] == (inside ? before[i] + to_float(part_bf16[i]) : before[i]));
      const float narrow = to_float(narrow_before[i]);
      REQUIRE(to_float(narrow_sum[i]) ==
              (inside ? to_float(to_bfloat16(narrow + part[i])) : narrow));
      REQUIRE(to_float(narrow_sum_bf16[i]) ==
              (inside ? to_float(to_bfloat16(narrow + to_float(part_bf16[i]))) : narrow));
    }
  });
}

TEST_CASE("divide is a true division") {
  for_sizes_and_offsets([](std::int64_t numel, std::int64_t offset) {
    const auto before = ordinary(numel + offset, 5);
    for (const float divisor : {3.0F, 7.0F, 300.0F}) {
      auto data = before;
      auto narrow = as_bf16(before);
      kernels::divide(DType::f32, data.data() + offset, numel, divisor);
      kernels::divide(DType::bf16, narrow.data() + offset, numel, divisor);
      for (std::size_t i = 0; i < data.size(); ++i) {
        const bool inside = i >= static_cast<std::size_t>(offset);
        REQUIRE(data[i] == (inside ? before[i] / divisor : before[i]));
        const float rounded = to_float(to_bfloat16(before[i]));
        REQUIRE(to_float(narrow[i]) ==
                (inside ? to_float(to_bfloat16(rounded / divisor)) : rounded));
      }
    }
  });
  // Multiplying by the inverse would round twice: 5 / 3 differs from 5 · (1 / 3) in the last bit.
  std::vector<float> five(64, 5.0F);
  kernels::divide(DType::f32, five.data(), 64, 3.0F);
  CHECK(five[63] == 5.0F / 3.0F);
}

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

TEST_CASE("sum adds fp32 sources in rank order, whichever of them it is written to") {
  for (const std::size_t count : {1U, 2U, 3U, 4U, 6U, 7U}) {
    for_sizes_and_offsets([count](std::int64_t numel, std::int64_t offset) {
      for (std::size_t in_place = 0; in_place <= count; ++in_place) {
        std::vector<std::vector<float>> data;
        std::vector<const void*> sources;
        data.reserve(count);
        sources.reserve(count);
        for (std::size_t rank = 0; rank < count; ++rank) {
          data.push_back(ordinary(numel + offset, 10 + rank));
        }
        for (const auto& source : data) {
          sources.push_back(source.data() + offset);
        }
        std::vector<float> expected = data[0];
        for (std::size_t rank = 1; rank < count; ++rank) {
          for (std::size_t i = 0; i < expected.size(); ++i) {
            expected[i] = expected[i] + data[rank][i];
          }
        }
        std::vector<float> separate(expected.size(), -1.0F);
        float* to = (in_place < count ? data[in_place].data() : separate.data()) + offset;
        kernels::sum(sources, DType::f32, to, numel);
        for (std::int64_t i = 0; i < numel; ++i) {
          REQUIRE(to[i] == expected[static_cast<std::size_t>(offset + i)]);
        }
      }
    });
  }
}

TEST_CASE("sum adds bf16 sources in fp32 and rounds once") {
  for (const std::size_t count : {1U, 2U, 3U, 4U, 6U, 7U}) {
    for_sizes_and_offsets([count](std::int64_t numel, std::int64_t offset) {
      for (std::size_t in_place = 0; in_place <= count; ++in_place) {
        std::vector<std::vector<BFloat16>> data;
        std::vector<const void*> sources;
        data.reserve(count);
        sources.reserve(count);
        for (std::size_t rank = 0; rank < count; ++rank) {
          data.push_back(as_bf16(ordinary(numel + offset, 20 + rank)));
        }
        for (const auto& source : data) {
          sources.push_back(source.data() + offset);
        }
        std::vector<BFloat16> expected;
        for (std::size_t i = 0; i < data[0].size(); ++i) {
          float sum = to_float(data[0][i]);
          for (std::size_t rank = 1; rank < count; ++rank) {
            sum = sum + to_float(data[rank][i]);
          }
          expected.push_back({rounded_by_hand(sum)});
        }
        std::vector<BFloat16> separate(expected.size());
        BFloat16* to = (in_place < count ? data[in_place].data() : separate.data()) + offset;
        kernels::sum(sources, DType::bf16, to, numel);
        for (std::int64_t i = 0; i < numel; ++i) {
          REQUIRE(to[i] == expected[static_cast<std::size_t>(offset + i)]);
        }
      }
    });
  }
}

TEST_CASE("sum adds its sources in their order") {
  // Of such values fp32 drops the small ones where a large one is there: any other order gives
  // other sums. (Ordinary bf16 values have so few bits that their sums are exact in any order.)
  constexpr float values[] = {1.0F, 3.0F, -1.0F, 67108864.0F, -67108864.0F};
  constexpr std::size_t numel = 3000;
  Random random(5);
  for (const std::size_t count : {3U, 4U, 5U, 6U, 7U}) {
    CAPTURE(count);
    std::vector<std::vector<float>> data(count, std::vector<float>(numel));
    std::vector<std::vector<BFloat16>> narrow;
    std::vector<float> expected(numel);
    for (auto& source : data) {
      for (std::size_t i = 0; i < numel; ++i) {
        source[i] = values[random.below(std::size(values))];
        expected[i] = &source == data.data() ? source[i] : expected[i] + source[i];
      }
      narrow.push_back(as_bf16(source));
    }
    std::vector<const void*> sources;
    std::vector<const void*> narrow_sources;
    for (std::size_t rank = 0; rank < count; ++rank) {
      sources.push_back(data[rank].data());
      narrow_sources.push_back(narrow[rank].data());
    }
    std::vector<float> sums(numel);
    kernels::sum(sources, DType::f32, sums.data(), numel);
    CHECK(sums == expected);
    std::vector<BFloat16> narrow_sums(numel);
    kernels::sum(narrow_sources, DType::bf16, narrow_sums.data(), numel);
    CHECK(narrow_sums == as_bf16(expected));
  }
}

TEST_CASE("a sum of one source keeps its bits, signalling NaNs too") {
  const std::vector<BFloat16> source{{0x7f81}, {0xff81}, {0x7f80}, {0x0001}};
  std::vector<BFloat16> to(4);
  const void* sources[] = {source.data()};
  kernels::sum(sources, DType::bf16, to.data(), 4);
  CHECK(to == source);
}

TEST_CASE("an infinity or NaN in one element stays in that element") {
  std::vector<float> a(65, 1.0F);
  std::vector<float> b(65, 2.0F);
  a[3] = infinity;
  b[64] = nan;
  const void* sources[] = {a.data(), b.data(), a.data()};
  std::vector<float> to(65);
  kernels::sum(sources, DType::f32, to.data(), 65);
  for (std::size_t i = 0; i < 65; ++i) {
    if (i == 3) {
      CHECK(to[i] == infinity);
    } else if (i == 64) {
      CHECK(std::isnan(to[i]));
    } else {
      REQUIRE(to[i] == 4.0F);
    }
  }
}

TEST_CASE("no bytes may have null addresses") {
  const void* sources[] = {nullptr, nullptr};
  double result = 1;
  bool non_finite = false;
  kernels::cast(DType::f32, nullptr, DType::bf16, nullptr, 0);
  kernels::accumulate(DType::f32, nullptr, DType::bf16, nullptr, 0);
  kernels::accumulate(DType::bf16, nullptr, DType::f32, nullptr, 0);
  kernels::divide(DType::bf16, nullptr, 0, 2.0F);
  kernels::squared_norm(DType::f32, nullptr, 0, &result, &non_finite);
  kernels::sum(sources, DType::bf16, nullptr, 0);
  kernels::copy(nullptr, nullptr, 0);
  kernels::zero(nullptr, 0);
  CHECK(result == 1);
}

TEST_CASE("a device's kernels run in order on a worker stream, and at once on the caller's") {
  for (const bool on_worker : {true, false}) {
    HostDevice device;
    Stream& stream = on_worker ? device.create_stream("compute") : Stream::caller();
    std::vector<float> data{1, 2, 3};
    std::vector<float> sum(3, 10.0F);
    std::vector<float> copied(3);
    std::vector<BFloat16> narrow(3);
    double norm = 0;
    bool non_finite = false;
    device.cast(stream, DType::f32, data.data(), DType::bf16, narrow.data(), 3);
    device.accumulate(stream, DType::f32, sum.data(), DType::bf16, narrow.data(), 3);  // 11 12 13
    device.divide(stream, DType::f32, sum.data(), 2, 2.0F);                            // 5.5 6 13
    device.squared_norm(stream, DType::f32, sum.data(), 3, &norm, &non_finite);
    device.copy(stream, copied.data(), sum.data(), 3 * sizeof(float));
    device.zero(stream, sum.data(), 2 * sizeof(float));
    if (on_worker) {
      CHECK_FALSE(test::settle(stream).failure);
    }
    CHECK(copied == std::vector<float>{5.5F, 6, 13});
    CHECK(sum == std::vector<float>{0, 0, 13});
    CHECK(norm == 5.5 * 5.5 + 36 + 169);
    CHECK_FALSE(non_finite);
  }
}

}  // namespace
}  // namespace troupe
