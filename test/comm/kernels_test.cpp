// Sums and divisions, what kernels do with no elements, and a device's kernels on its streams.
#include "troupe/comm/kernels.hpp"

#include "support/kernel_data.hpp"
#include "support/settle.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace troupe::test {
namespace {

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
}  // namespace troupe::test
