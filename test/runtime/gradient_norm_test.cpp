/// The global norm of gradients and clipping to it: over shards, process groups and copies of the
/// model, each parameter counted once, the same bits on every rank.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/experts.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace troupe::test {
namespace {

TEST_CASE("S38: the norm counts every parameter once, and clipping leaves the oracle's gradients") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, d4_model(), variant.options);
                trainer.micro_batch();
                trainer.runtime.finish_gradients();
                const double right = std::sqrt(1024.0 * 6.25 * 30.0);  // 438.178
                const GradientNorm before = trainer.runtime.clip_gradients(1.0F);
                findings.equal(before.norm, right, "norm before clipping");
                findings.expect(before.finite, "a gradient is not finite");
                const auto divisor = static_cast<float>(right);
                trainer.expect_gradients(
                    [&](BucketId layer) { return 2.5F * static_cast<float>(layer + 1) / divisor; });
                const double after = trainer.runtime.gradient_norm().norm;
                findings.expect(std::abs(after - 1.0) < 1e-6, "norm after clipping");
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
  }
}

TEST_CASE("clipping to a norm that is not exceeded changes nothing") {
  for (const float max_norm : {439.0F, std::numeric_limits<float>::infinity()}) {
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), d4_options());
            trainer.micro_batch();
            trainer.runtime.finish_gradients();
            trainer.runtime.clip_gradients(max_norm);
            trainer.expect_gradients(
                [](BucketId layer) { return 2.5F * static_cast<float>(layer + 1); });
            trainer.optimize();
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("the norm does not depend on the number of ranks or on padding") {
  // Shards that are empty on some ranks, one element, gaps: 1 + 4·5 + 9·3 + 16·1003 squares.
  for (const D4Variant& variant : {D4Variant{"owner", {.strategy = Strategy::owner_broadcast}},
                                   D4Variant{"sliced", {.strategy = Strategy::sharded_optimizer}},
                                   D4Variant{"full_shard", {}}}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      CAPTURE(std::string(variant.name));
      CAPTURE(ranks);
      Model model;
      for (const std::int64_t numel : {1, 5, 0, 3, 1003}) {
        model.add_parameter(model.add_unit("L" + std::to_string(model.units().size())),
                            {.name = "w", .shape = {numel}});
      }
      CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
              Options options = variant.options;
              options.alignment_numel = 1;
              options.gradient_divisor = 1.0F;
              D4Trainer trainer(world, findings, model, options);
              trainer.micro_batch();
              trainer.runtime.finish_gradients();
              const double sum = ranks * (ranks + 1) / 2.0;
              findings.equal(trainer.runtime.gradient_norm().norm,
                             std::sqrt(sum * sum * (1 + 4 * 5 + 16 * 3 + 25 * 1003)), "norm");
            }) == "");
    }
  }
}

TEST_CASE("experts of all ranks count, each once, also with copies of the model") {
  for (const int replicate : {1, 2}) {
    CAPTURE(replicate);
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            const Model model = dense_and_experts(1);
            Options options;
            options.mesh = {.replicate = replicate, .ep = 2};
            options.gradient_divisor = 1.0F;
            ExpertTrainer trainer(world, findings, model, options);
            trainer.micro_batch();
            trainer.runtime.finish_gradients();
            // Unit 0 sums 1 + 2 + 3 + 4; expert 0 has the tokens of ranks 0 and 2, expert 1 those
            // of 1 and 3, times two as unit 1.
            findings.equal(trainer.runtime.gradient_norm().norm,
                           std::sqrt(256.0 * (100 + 64 + 144)), "norm");
          }) == "");
  }
}

TEST_CASE("one infinite element on one rank is everybody's verdict, and clipping leaves it") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(4, 1), variant.options);
            {
              const auto micro_batch = trainer.runtime.micro_batch();
              for (UnitId unit = 0; unit < 4; ++unit) {
                trainer.forward(unit);
              }
              for (UnitId unit = 4; unit-- > 0;) {
                const Use use = trainer.runtime.backward(unit);
                use.gradient("w").as<float>()[0] =
                    unit == 1 && world.rank() == 2 ? std::numeric_limits<float>::infinity() : 1.0F;
              }
            }
            trainer.runtime.finish_gradients();
            const GradientNorm norm = trainer.runtime.clip_gradients(0.5F);
            findings.expect(!norm.finite, "rank " + std::to_string(world.rank()) + " says finite");
            findings.expect(!std::isfinite(norm.norm) || norm.norm < 0, "the norm is a number");
            Update update = trainer.runtime.update();
            const ShardView shard = update.shard(3);
            for (const ShardPiece& piece : shard.pieces) {
              findings.equal(shard.gradients[static_cast<std::size_t>(piece.shard_offset)], 1.0F,
                             "a gradient of another layer");
            }
          }) == "");
  }
}

TEST_CASE("norm and clipping out of turn or with no limit are refused, and change nothing") {
  CHECK(on_ranks(2, [](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, d4_model(), d4_options());
          Runtime& runtime = trainer.runtime;
          expect_refused(findings, "norm before the end",
                         {"Runtime::gradient_norm: the gradients are not complete; call "
                          "finish_gradients() first"},
                         [&] { static_cast<void>(runtime.gradient_norm()); });
          trainer.micro_batch();
          expect_refused(findings, "clipping before the end",
                         {"Runtime::clip_gradients: the gradients are not complete"},
                         [&] { static_cast<void>(runtime.clip_gradients(1.0F)); });
          for (const float scale : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
            expect_refused(findings, "loss scale",
                           {"Runtime::finish_gradients: the loss scale is", "above 0"},
                           [&] { runtime.finish_gradients(scale); });
          }
          runtime.finish_gradients();
          for (const float limit : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
            expect_refused(findings, "max_norm",
                           {"Runtime::clip_gradients: max_norm is", "expected a number above 0"},
                           [&] { static_cast<void>(runtime.clip_gradients(limit)); });
          }
          {
            const Update update = runtime.update();
            expect_refused(findings, "inside an update",
                           {"Runtime::clip_gradients inside an update"},
                           [&] { static_cast<void>(runtime.clip_gradients(1.0F)); });
          }
          trainer.optimize();
          trainer.expect_oracle();
        }) == "");
}

}  // namespace
}  // namespace troupe::test
