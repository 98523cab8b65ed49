/// Loss scaling: exact powers of two, one verdict on all ranks, and steps left out.
#include "troupe/runtime/loss_scaler.hpp"
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <tuple>

namespace troupe::test {
namespace {

TEST_CASE("a loss scaler halves, grows after enough finite steps, and stays within its bounds") {
  LossScaler scaler({.scale = 8.0F, .growth_interval = 3, .scale_min = 2.0F, .scale_max = 16.0F});
  const auto scales = [&](std::initializer_list<bool> verdicts) {
    std::vector<float> found;
    for (const bool finite : verdicts) {
      CHECK(scaler.update(finite) == finite);
      found.push_back(scaler.scale());
    }
    return found;
  };
  CHECK(scales({true, true, true, true, true, true, true}) ==
        std::vector<float>{8, 8, 16, 16, 16, 16, 16});
  CHECK(scales({false, true, true, false, true, true, true, false, false, false, false}) ==
        std::vector<float>{8, 8, 8, 4, 4, 4, 8, 4, 2, 2, 2});
  const LossScaler::State kept = scaler.state();
  LossScaler other;
  CHECK(other.scale() == 65536.0F);
  other.restore(kept);
  CHECK(other.state() == kept);
  CHECK(other.scale() == 2.0F);
}

TEST_CASE("a loss scaler names the option that cannot be used") {
  const auto text_of = [](const LossScalerOptions& options) {
    try {
      const LossScaler scaler(options);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_configuration);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(text_of({}) == "");
  CHECK(text_of({.scale = 0.5F}) ==
        "LossScalerOptions::scale is 0.500000; expected a number from scale_min to scale_max");
  CHECK(text_of({.growth = 0.5F}) ==
        "LossScalerOptions::growth is 0.500000; expected a finite number, 1 or more");
  CHECK(text_of({.backoff = 1.0F}) ==
        "LossScalerOptions::backoff is 1.000000; expected a number above 0 and below 1");
  CHECK(text_of({.growth_interval = 0}) ==
        "LossScalerOptions::growth_interval is 0.000000; expected 1 or more");
  CHECK(text_of({.scale_min = 0.0F}) ==
        "LossScalerOptions::scale_min is 0.000000; expected a finite number above 0");
  CHECK(text_of({.scale_max = 0.5F}) ==
        "LossScalerOptions::scale_max is 0.500000; expected a finite number, not below scale_min");
}

TEST_CASE("gradients of a scaled loss are those of the loss, bit for bit") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), variant.options);
            for (const float scale : {65536.0F, 1.0F, 0.5F}) {
              {
                const auto micro_batch = trainer.runtime.micro_batch();
                for (UnitId unit = 0; unit < 4; ++unit) {
                  trainer.forward(unit);
                }
                for (UnitId unit = 4; unit-- > 0;) {
                  const Use use = trainer.runtime.backward(unit);
                  for (float& value : use.gradient("w").as<float>()) {
                    value = d4_gradient(world.rank(), unit) * scale;
                  }
                  trainer.oracle.contribute(unit, d4_gradient_sum(4, unit));
                }
              }
              trainer.runtime.finish_gradients(scale);
              trainer.optimize();
            }
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("a step with an infinite gradient is left out on all ranks, and the next one is right") {
  // Layers of one element: most ranks have no shard of the one that overflows.
  for (const D4Variant& variant : d4_variants()) {
    for (const int at : {0, 3}) {
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(at);
      LaunchLog launches(4);
      CHECK(on_ranks(
                4,
                [&](World& world, Findings& findings) {
                  D4Trainer trainer(world, findings, d4_model(4, 1), variant.options);
                  LossScaler scaler({.scale = 16.0F});
                  std::vector<std::uint64_t> versions;
                  for (int step = 0; step < 4; ++step) {
                    const bool overflows = step == 1;
                    {
                      const auto micro_batch = trainer.runtime.micro_batch();
                      for (UnitId unit = 0; unit < 4; ++unit) {
                        trainer.forward(unit);
                      }
                      for (UnitId unit = 4; unit-- > 0;) {
                        const Use use = trainer.runtime.backward(unit);
                        trainer.read(use, unit);
                        use.gradient("w").as<float>()[0] =
                            overflows && unit == 2 && world.rank() == at
                                ? std::numeric_limits<float>::quiet_NaN()
                                : d4_gradient(world.rank(), unit) * scaler.scale();
                        if (!overflows) {
                          trainer.oracle.contribute(unit, d4_gradient_sum(4, unit));
                        }
                      }
                    }
                    trainer.runtime.finish_gradients(scaler.scale());
                    if (scaler.update(trainer.runtime.gradient_norm().finite)) {
                      trainer.optimize();
                    } else {
                      trainer.runtime.skip_update();
                    }
                    findings.equal(scaler.scale(), step == 0 ? 16.0F : 8.0F, "scale");
                  }
                  findings.equal(trainer.runtime.steps(), std::uint64_t{4}, "steps");
                  trainer.expect_oracle();
                },
                &launches) == "");
      CHECK(launches.same_on_all_ranks());
    }
  }
}

}  // namespace
}  // namespace troupe::test
