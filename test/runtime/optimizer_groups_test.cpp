/// Optimizers on shards: parameter groups, learning rates by value, momentum, several optimizers in
/// one update. References are computed here, element by element.
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace troupe::test {
namespace {

bool is_bias(const Parameter& parameter) {
  return parameter.full_name.ends_with(".b");
}

Model weights_and_biases(std::int64_t numel = 100) {
  Model model;
  for (UnitId layer = 0; layer < 4; ++layer) {
    const UnitId unit = model.add_unit("L" + std::to_string(layer));
    model.add_parameter(unit, {.name = "w", .shape = {numel}});
    model.add_parameter(unit, {.name = "b", .shape = {3}});
  }
  return model;
}

/// Trains with the gradient (rank + 1)(unit + 1); `step(runtime, k)` is the optimizer's.
template <class Step>
void train(World& world, Runtime& runtime, int steps, Step step) {
  runtime.initialize([](ParameterView view) { std::ranges::fill(view.data, 2.0F); });
  for (int k = 0; k < steps; ++k) {
    {
      const auto micro_batch = runtime.micro_batch();
      for (UnitId unit = 4; unit-- > 0;) {
        const Use use = runtime.backward(unit);
        for (const char* name : {"w", "b"}) {
          std::ranges::fill(use.gradient(name).as<float>(), d4_gradient(world.rank(), unit));
        }
      }
    }
    runtime.finish_gradients();
    step(runtime, k);
  }
}

/// Every element of every parameter is what `right(parameter)` says.
template <class Right>
void expect_values(Runtime& runtime, Findings& findings, Right right) {
  for (const Parameter& parameter : runtime.model().parameters()) {
    const std::vector<float> values = runtime.full_parameter(parameter.full_name);
    const float value = right(parameter);
    findings.expect(std::ranges::all_of(values, [&](float p) { return p == value; }),
                    parameter.full_name + " is " + std::to_string(values.front()) + ", not " +
                        std::to_string(value));
  }
}

TEST_CASE("groups have learning rates and weight decay of their own, by value per step") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            Runtime runtime(world, weights_and_biases(), variant.options);
            Sgd sgd(
                {.weight_decay = 0.25F,
                 .groups = {{.parameters = is_bias, .learning_rate = 0.5F, .weight_decay = 0.0F}}});
            const auto rate = [](int step) { return 0.125F / static_cast<float>(step + 1); };
            train(world, runtime, 3, [&](Runtime& trained, int step) {
              sgd.set_learning_rate(rate(step));
              if (step == 2) {
                sgd.set_learning_rate(0, 0.25F);
              }
              sgd.step(trained);
            });
            expect_values(runtime, findings, [&](const Parameter& parameter) {
              const float g = 2.5F * static_cast<float>(parameter.unit + 1);
              float p = 2.0F;
              for (int step = 0; step < 3; ++step) {
                if (is_bias(parameter)) {
                  p = p - (step == 2 ? 0.25F : 0.5F) * g;
                } else {
                  p = p - rate(step) * (g + 0.25F * p);
                }
              }
              return p;
            });
          }) == "");
  }
}

TEST_CASE("SGD with momentum, plain and Nesterov, equals its formula on any number of ranks") {
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const bool nesterov : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(nesterov);
        Options options;
        options.strategy = strategy;
        CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
                Runtime runtime(world, weights_and_biases(7), options);
                Sgd sgd({.learning_rate = 0.1F,
                         .momentum = 0.9F,
                         .nesterov = nesterov,
                         .weight_decay = 0.01F});
                train(world, runtime, 4, [&](Runtime& trained, int) { sgd.step(trained); });
                expect_values(runtime, findings, [&](const Parameter& parameter) {
                  const float g =
                      d4_gradient_sum(ranks, parameter.unit) / static_cast<float>(ranks);
                  float p = 2.0F;
                  float b = 0.0F;
                  for (int step = 0; step < 4; ++step) {
                    const float d = g + 0.01F * p;
                    b = 0.9F * b + d;
                    p = p - 0.1F * (nesterov ? d + 0.9F * b : b);
                  }
                  return p;
                });
              }) == "");
      }
    }
  }
}

TEST_CASE("S24: two optimizers in one update cost the gathers of one") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    const auto run = [&](bool two) {
      LaunchLog launches(4);
      CHECK(on_ranks(
                4,
                [&](World& world, Findings& findings) {
                  Runtime runtime(world, weights_and_biases(), variant.options);
                  AdamW adamw({.learning_rate = 0.1F,
                               .groups = {{.parameters = is_bias}},
                               .groups_only = true});
                  Sgd sgd({.learning_rate = 0.5F,
                           .groups = {{.parameters =
                                           [](const Parameter& parameter) {
                                             return !is_bias(parameter);
                                           }}},
                           .groups_only = true});
                  train(world, runtime, 3, [&](Runtime& trained, int) {
                    Update update = trained.update();
                    sgd.step(update);
                    if (two) {
                      adamw.step(update);
                    }
                  });
                  const std::vector<float> b = runtime.full_parameter("L2.b");
                  findings.expect((b[0] == 2.0F) == !two, "L2.b is " + std::to_string(b[0]));
                  findings.equal(runtime.counts("sgd.step")[0], std::uint64_t{3}, "steps of w");
                  findings.equal(runtime.counts("sgd.step")[1], std::uint64_t{0}, "steps of b");
                  findings.equal(runtime.full_parameter("L2.w")[99], 2.0F - 3 * 0.5F * 7.5F,
                                 "L2.w");
                },
                &launches) == "");
      CHECK(launches.same_on_all_ranks());
      return unshards(launches, variant.options);
    };
    CHECK(run(true) == run(false));
  }
}

TEST_CASE("a learning rate for a group that is not there is refused") {
  Sgd sgd({.groups = {{.parameters = is_bias}}});
  sgd.set_learning_rate(0, 0.5F);
  try {
    sgd.set_learning_rate(1, 0.5F);
    FAIL("it was not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::misuse);
    CHECK(std::string(error.what()) ==
          "Sgd::set_learning_rate: group 1 does not exist; there are 1");
  }
}

TEST_CASE("an optimizer's step within an update needs finished gradients, too") {
  CHECK(on_ranks(2, [](World& world, Findings& findings) {
          Runtime runtime(world, weights_and_biases(), {});
          Sgd sgd;
          Update update = runtime.update();
          try {
            sgd.step(update);
            findings.expect(false, "it was not refused");
          } catch (const Error& error) {
            findings.expect(std::string(error.what()) ==
                                "Sgd::step: the gradients are not complete; call "
                                "finish_gradients() first",
                            error.what());
          }
        }) == "");
}

}  // namespace
}  // namespace troupe::test
