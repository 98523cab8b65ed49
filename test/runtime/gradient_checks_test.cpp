/// Gradients that are infinite or not a number, found before they are reduced; parameters that got
/// no gradient at all.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/failing_world.hpp"

#include <doctest/doctest.h>

#include <limits>

namespace troupe::test {
namespace {

Model two_parameters_each() {
  Model model;
  for (UnitId layer = 0; layer < 4; ++layer) {
    const UnitId unit = model.add_unit("L" + std::to_string(layer));
    model.add_parameter(unit, {.name = "a", .shape = {512}});
    model.add_parameter(unit, {.name = "b", .shape = {512}});
  }
  return model;
}

/// Two micro-batches; in the second one rank 2 writes `bad` at the end of L1.b.
Outcome run_with(const Options& options, float bad, bool on_worker) {
  return outcome_of(4, [&](World& world) {
    Runtime runtime(world, two_parameters_each(), options);
    runtime.initialize([](ParameterView) {});
    HostStream* const stream =
        on_worker ? &world.host_device().create_host_stream("compute") : nullptr;
    for (int index = 0; index < 2; ++index) {
      const auto micro_batch = runtime.micro_batch();
      for (UnitId unit = 4; unit-- > 0;) {
        const Use use = runtime.backward(unit, stream);
        for (const char* name : {"a", "b"}) {
          const GradientView view = use.gradient(name);
          const bool spoil =
              index == 1 && unit == 1 && world.rank() == 2 && std::string_view(name) == "b";
          const auto write = [view, spoil, bad] {
            if (view.dtype == DType::f32) {
              std::ranges::fill(view.as<float>(), 1.0F);
              view.as<float>().back() = spoil ? bad : 1.0F;
            } else {
              std::ranges::fill(view.as<BFloat16>(), to_bfloat16(1.0F));
              view.as<BFloat16>().back() = to_bfloat16(spoil ? bad : 1.0F);
            }
          };
          if (stream != nullptr) {
            stream->run(write);
          } else {
            write();
          }
        }
      }
    }
    runtime.finish_gradients();
  });
}

TEST_CASE("a gradient that is no finite number is named before it is reduced") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const D4Variant& variant : d4_variants()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool on_worker : {false, true}) {
        CAPTURE(std::string(variant.name));
        CAPTURE(variant.options.overlap);
        CAPTURE(std::string(to_string(dtype)));
        CAPTURE(on_worker);
        Options options = variant.options;
        options.reduce_dtype = dtype;
        options.check_gradients = true;
        const std::string right =
            "rank 2: the gradient of 'L1.b' is infinite or not a number behind the backward of "
            "unit 1 'L1', in micro-batch 2 of step 1";
        const Outcome outcome = run_with(options, dtype == DType::f32 ? nan : -infinity, on_worker);
        CHECK(outcome.text() == right);
        CHECK(outcome.heard == std::vector<std::string>(4, right));
        REQUIRE(outcome.failure);
        CHECK(outcome.failure->code == ErrorCode::non_finite);
        CHECK(outcome.failure->rank == 2);
      }
    }
  }
}

TEST_CASE("checking gradients changes nothing about a run without such") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    Options options = variant.options;
    options.check_gradients = true;
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), options);
            HostStream& stream = world.host_device().create_host_stream("compute");
            for (int step = 0; step < 4; ++step) {
              trainer.stream = step % 2 == 0 ? &stream : nullptr;
              trainer.step();
            }
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("S26: an unused unit is an error on all ranks if that is asked for, and no count stays") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    LaunchLog launches(4);
    Options options = variant.options;
    options.unused_parameters = UnusedParameters::error;
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, two_parameters_each(), options);
                for (int attempt = 0; attempt < 2; ++attempt) {
                  {
                    const auto micro_batch = trainer.runtime.micro_batch();
                    for (UnitId unit = 0; unit < 4; ++unit) {
                      trainer.forward(unit);
                    }
                    for (const UnitId unit : {3U, 2U, 0U}) {
                      const Use use = trainer.runtime.backward(unit);
                      std::ranges::fill(use.gradient("a").as<float>(), 100.0F);
                      if (unit != 3 || world.rank() == 1) {
                        std::ranges::fill(use.gradient("b").as<float>(), 100.0F);
                      }
                    }
                  }
                  std::string text;
                  try {
                    trainer.runtime.finish_gradients();
                  } catch (const Error& error) {
                    findings.expect(error.code() == ErrorCode::misuse, "another code");
                    text = error.what();
                  }
                  std::string right = "step 1 is given up";
                  const BucketPlan& plan = trainer.runtime.bucket_plan();
                  for (const Bucket& bucket : plan.buckets) {
                    for (int rank = 0; rank < 4; ++rank) {
                      std::string none;
                      std::size_t ready = 0;
                      for (const ParameterId id : bucket.parameters) {
                        const std::string& name =
                            trainer.runtime.model().parameters()[id].full_name;
                        const bool unused = name.starts_with("L1") || (name == "L3.b" && rank != 1);
                        ready += unused ? 0 : 1;
                        none += unused ? (none.empty() ? "'" : ", '") + name + "'" : "";
                      }
                      if (!none.empty()) {
                        right += "; bucket " + std::to_string(bucket.id) + ": " +
                                 std::to_string(ready) + " of " +
                                 std::to_string(bucket.parameters.size()) +
                                 " gradients ready on rank " + std::to_string(rank) + ", none of " +
                                 none;
                      }
                    }
                  }
                  right += " (Options::unused_parameters is error)";
                  findings.expect(text == right, "was told '" + text + "', not '" + right + "'");
                }
                findings.equal(trainer.runtime.steps(), std::uint64_t{0}, "steps");
                trainer.step();  // a whole one
                trainer.step();
                findings.equal(trainer.runtime.steps(), std::uint64_t{2}, "steps");
                trainer.expect_oracle();
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
  }
}

TEST_CASE("with two micro-batches a parameter counts as used if one of them used it") {
  Options options = d4_options();
  options.unused_parameters = UnusedParameters::error;
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, d4_model(2), options);
          for (const UnitId unit : {0U, 1U}) {
            const auto micro_batch = trainer.runtime.micro_batch();
            trainer.forward(unit);
            trainer.backward(unit);
          }
          trainer.runtime.finish_gradients();
          trainer.optimize();
          trainer.expect_oracle();
        }) == "");
}

}  // namespace
}  // namespace troupe::test
