/// Scenarios about sums and divisors, under every strategy: groups of one, meshes of two
/// dimensions.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/experts.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace troupe::test {
namespace {

TEST_CASE("S27: in a group of one, 16 micro-batches of gradient 3 accumulate to exactly 48") {
  for (const bool whole_world : {true, false}) {  // or an expert group inside a world of four
    const int ranks = whole_world ? 1 : 4;
    for (const D4Variant& variant : d4_variants()) {
      if (variant.options.mesh.replicate > 1 ||
          (whole_world && variant.options.regather_group_size > 0)) {
        continue;
      }
      CAPTURE(whole_world);
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      Options options = variant.options;
      options.mesh.ep = whole_world ? 1 : 4;
      options.gradient_divisor = 1.0F;
      options.expert_gradient_divisor = 1.0F;
      options.keep_gathered.clear();
      CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
              Runtime runtime(world, dense_and_experts(1), options);
              runtime.initialize([](ParameterView) {});
              for (int micro_batch = 0; micro_batch < 16; ++micro_batch) {
                const auto scope = runtime.micro_batch();
                for (const UnitId unit : {0U, 1U}) {
                  static_cast<void>(runtime.forward(unit));
                }
                for (const UnitId unit : {1U, 0U}) {
                  const Use use = runtime.backward(unit);
                  std::ranges::fill(use.gradient("w").as<float>(), 3.0F);
                }
              }
              runtime.finish_gradients();
              Update update = runtime.update();
              for (const UnitId unit : {0U, 1U}) {
                const float right = is_expert(unit) || whole_world ? 48.0F : 4.0F * 48.0F;
                const ShardView shard = update.shard(unit);
                findings.expect(
                    std::ranges::all_of(shard.gradients, [&](float g) { return g == right; }),
                    "the gradient of unit " + std::to_string(unit) + " is not " +
                        std::to_string(right));
                if (is_expert(unit)) {
                  double squares = 0.0;
                  bool non_finite = false;
                  world.device().squared_norm(Stream::caller(), DType::f32, shard.gradients.data(),
                                              static_cast<std::int64_t>(shard.gradients.size()),
                                              &squares, &non_finite);
                  findings.equal(std::sqrt(squares), 48.0 * 16.0, "norm");
                }
              }
              const Report report = runtime.report();
              findings.equal(report.schedule.reduces, 32U, "reduces");
              findings.equal(report.collectives[static_cast<std::size_t>(reduces_by(options))], 32U,
                             "collectives that reduce");
            }) == "");
    }
  }
}

TEST_CASE("S30: four micro-batches, each reduced, add up before the division") {
  for (const D4Variant& variant : d4_variants()) {
    for (const bool sum : {true, false}) {
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(sum);
      Options options = variant.options;
      options.gradient_divisor = sum ? std::optional(1.0F) : std::nullopt;
      LaunchLog launches(4);
      CHECK(on_ranks(
                4,
                [&](World& world, Findings& findings) {
                  D4Trainer trainer(world, findings, d4_model(), options);
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
                },
                &launches) == "");
      CHECK(launches.buckets(reduces_by(options)).size() == 2 * 4 * 4);
    }
  }
}

TEST_CASE("S28: a custom divisor divides the sum once, on a mesh of one or of two dimensions") {
  struct Mesh {
    DeviceMesh mesh;
    bool at_step_end;
  };
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    for (const Mesh& row :
         {Mesh{{}, false}, Mesh{{.replicate = 2, .shard = 4}, false},
          Mesh{{.replicate = 2, .shard = 4}, true}, Mesh{{.replicate = 4, .shard = 2}, false},
          Mesh{{.replicate = 8, .shard = 1}, true}}) {
      CAPTURE(static_cast<int>(strategy));
      CAPTURE(row.mesh.replicate);
      CAPTURE(row.at_step_end);
      const Options options{.strategy = strategy,
                            .mesh = row.mesh,
                            .gradient_divisor = 300.0F,
                            .sum_replicas_at_step_end = row.at_step_end};
      if (strategy == Strategy::owner_broadcast && row.mesh.replicate > 1) {
        CHECK(on_ranks(8, [&](World& world, Findings& findings) {
                expect_refused(
                    findings, "replicas of one owner's parameters", {"mesh.replicate"},
                    [&] { const Runtime refused(world, d4_model(), options); },
                    ErrorCode::bad_configuration);
              }) == "");
        continue;
      }
      CHECK(on_ranks(8, [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, d4_model(), options);
              trainer.micro_batch();
              trainer.runtime.finish_gradients();
              trainer.expect_gradients(
                  [](BucketId bucket) { return 36.0F * static_cast<float>(bucket + 1) / 300.0F; });
              trainer.optimize();
              trainer.expect_oracle();
            }) == "");
    }
  }
}

}  // namespace
}  // namespace troupe::test
