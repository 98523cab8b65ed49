/// Scenarios about gradients: accumulation, uses out of the ordinary, divisors, precision.
#include "troupe/test/support/d4.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

namespace troupe::test {
namespace {

Options sum_only(Options options = d4_options()) {
  options.gradient_divisor = 1.0F;  // what finish_gradients leaves is the sum
  return options;
}

TEST_CASE("S21: a unit used twice before backward is reduced once, with the sum of both uses") {
  for (const bool mean : {false, true}) {
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, d4_model(3), mean ? d4_options() : sum_only());
                DeviceCounters& counters = world.device().counters();
                {
                  const auto micro_batch = trainer.runtime.micro_batch();
                  for (const UnitId layer : {0U, 1U, 1U, 2U}) {
                    trainer.forward(layer);
                  }
                  trainer.backward(2);
                  trainer.backward(1);
                  findings.equal(counters.gradient_bytes.load(), 4096,
                                 "gradient bytes between the two backwards");
                  trainer.backward(1);
                  findings.equal(counters.gradient_bytes.load(), 0,
                                 "gradient bytes after the second backward");
                  trainer.backward(0);
                }
                trainer.runtime.finish_gradients();
                trainer.expect_gradients([&](BucketId bucket) {
                  const std::array<float, 3> sums{10.0F, 40.0F, 30.0F};
                  return mean ? sums[bucket] / 4.0F : sums[bucket];
                });
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
    CHECK(launches.buckets(Collective::reduce_scatter) == std::vector<BucketId>{2, 1, 0});
  }
}

TEST_CASE("S30: four micro-batches, each reduced, add up before the division") {
  for (const bool sum : {true, false}) {
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, d4_model(), sum ? sum_only() : d4_options());
                for (int step = 0; step < 2; ++step) {
                  for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
                    trainer.micro_batch();
                  }
                  trainer.runtime.finish_gradients();
                  trainer.expect_gradients([&](BucketId bucket) {
                    return static_cast<float>(bucket + 1) * (sum ? 40.0F : 10.0F);
                  });
                  trainer.optimize();
                }
                trainer.expect_oracle();
                for (const Parameter& parameter : trainer.runtime.model().parameters()) {
                  const auto full = trainer.runtime.full_parameter(parameter.full_name);
                  findings.expect(
                      std::ranges::all_of(full, [](float p) { return std::isfinite(p); }) &&
                          std::ranges::any_of(full, [](float p) { return p != 0.0F; }),
                      "parameters are not finite, or all zero");
                }
              },
              &launches) == "");
    CHECK(launches.buckets(Collective::reduce_scatter).size() == 2 * 4 * 4);
  }
}

/// Accumulates 1, then 256 times 2^-9, over micro-batches or within one; the mean over the ranks.
float accumulated(int ranks, DType dtype, DType reduce_dtype, bool within_one, std::string& wrong) {
  float result = 0.0F;
  wrong = on_ranks(ranks, [&](World& world, Findings& findings) {
    Model model;
    model.add_parameter(model.add_unit("L0"), {.name = "w", .shape = {5}, .dtype = dtype});
    Runtime runtime(world, model, {.reduce_dtype = reduce_dtype});
    runtime.initialize([](ParameterView) {});
    constexpr int contributions = 257;
    const auto backward = [&](float gradient) {
      const Use use = runtime.backward(0);
      const GradientView view = use.gradient("w");
      findings.expect(view.dtype == reduce_dtype, "a gradient of another dtype");
      for (std::int64_t i = 0; i < view.numel; ++i) {
        if (reduce_dtype == DType::f32) {
          float& value = static_cast<float*>(view.data)[i];
          value = view.accumulate ? value + gradient : gradient;
        } else {
          BFloat16& value = static_cast<BFloat16*>(view.data)[i];
          value = to_bfloat16(view.accumulate ? to_float(value) + gradient : gradient);
        }
      }
    };
    const auto gradient = [](int i) { return i == 0 ? 1.0F : std::ldexp(1.0F, -9); };
    if (within_one) {
      const auto scope = runtime.micro_batch();
      for (int i = 0; i < contributions; ++i) {
        static_cast<void>(runtime.forward(0));
      }
      for (int i = 0; i < contributions; ++i) {
        backward(gradient(i));
      }
    } else {
      for (int i = 0; i < contributions; ++i) {
        const auto scope = runtime.micro_batch();
        static_cast<void>(runtime.forward(0));
        backward(gradient(i));
      }
    }
    runtime.finish_gradients();
    Update update = runtime.update();
    const ShardView shard = update.shard(0);
    for (const ShardPiece& piece : shard.pieces) {  // rank 0 has some
      for (std::int64_t i = 0; i < piece.numel; ++i) {
        const float g = shard.gradients[static_cast<std::size_t>(piece.shard_offset + i)];
        result = world.rank() == 0 ? g : result;
      }
    }
  });
  return result;
}

TEST_CASE("S37: small gradients are not lost in an fp32 main gradient") {
  for (const int ranks : {1, 8}) {
    for (const bool within_one : {false, true}) {
      std::string wrong;
      CHECK(accumulated(ranks, DType::bf16, DType::f32, within_one, wrong) == 1.5F);
      CHECK(wrong == "");
    }
    // A slot of bf16 is what loses them: 2^-9 is below half a unit in the last place of 1.
    std::string wrong;
    CHECK(accumulated(ranks, DType::bf16, DType::bf16, true, wrong) == 1.0F);
    CHECK(wrong == "");
    // Over micro-batches even then nothing is lost: those are added up in fp32.
    CHECK(accumulated(ranks, DType::bf16, DType::bf16, false, wrong) == 1.5F);
    CHECK(wrong == "");
  }
}

}  // namespace
}  // namespace troupe::test
