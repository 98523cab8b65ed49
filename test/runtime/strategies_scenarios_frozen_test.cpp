/// Scenarios about frozen parameters, under every strategy: they stay as they are, and where full
/// buffers stay they are gathered once.
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

namespace troupe::test {
namespace {

TEST_CASE("S22: the end of a backward that was never begun, of a frozen unit, is counted") {
  Model model;
  for (UnitId layer = 0; layer < 4; ++layer) {
    model.add_parameter(model.add_unit("L" + std::to_string(layer)),
                        {.name = "w", .shape = {1024}, .trainable = layer != 1});
  }
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, model, variant.options);
                {
                  // The second place for open uses is left to the backward of unit 1.
                  const auto micro_batch = trainer.runtime.micro_batch();
                  trainer.forward(0);
                  const Use around = trainer.runtime.backward(0);
                  trainer.contribute(around, 0, 1.0F);
                  trainer.backward(1);
                }
                trainer.runtime.finish_gradients();
                trainer.optimize();
                for (int step = 0; step < 3; ++step) {
                  {
                    const auto micro_batch = trainer.runtime.micro_batch();
                    for (UnitId layer = 0; layer < 4; ++layer) {
                      trainer.forward(layer);
                    }
                    trainer.backward(3);
                    trainer.backward(2);
                    EndAgain(trainer.runtime, 1).end();  // B-(1) without B+(1)
                    trainer.backward(0);
                  }
                  trainer.runtime.finish_gradients();
                  trainer.optimize();
                  findings.equal(trainer.counters().releases_ignored,
                                 static_cast<std::uint64_t>(step + 1), "ends ignored");
                }
                trainer.expect_oracle();
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
    CHECK(std::ranges::count(launches.buckets(reduces_by(variant.options)), BucketId{1}) == 0);
  }
}

TEST_CASE("S23: a frozen parameter stays as it is, and is gathered once where it may stay") {
  Model model;
  const UnitId unit = model.add_unit("L0");
  model.add_parameter(unit, {.name = "a", .shape = {341}});
  model.add_parameter(unit, {.name = "b", .shape = {341}, .trainable = false});
  model.add_parameter(unit, {.name = "c", .shape = {342}});
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    LaunchLog launches(4);
    BucketId frozen = 0;
    std::size_t before_change = 0;
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, model, variant.options);
                Runtime& runtime = trainer.runtime;
                const BucketId bucket = runtime.bucket_plan().bucket_of[model.parameter("L0.b")];
                const auto gathers = [&] {
                  RankActors& actors = world.context().actors();
                  findings.expect(actors.quiesce(std::chrono::seconds{20}), "gathers do not end");
                  return std::ranges::count_if(launches.of_rank[0], [&](const LaunchRecord& each) {
                    return each.op == unshards_by(variant.options) && each.bucket == bucket &&
                           each.label != "for an export";
                  });
                };
                std::array<std::vector<float>, 3> before;
                const std::array<const char*, 3> names{"L0.a", "L0.b", "L0.c"};
                for (int step = 0; step < 8; ++step) {
                  for (std::size_t i = 0; i < names.size(); ++i) {
                    before[i] = runtime.full_parameter(names[i]);
                  }
                  trainer.step();
                  for (std::size_t i = 0; i < names.size(); ++i) {
                    const bool moved = runtime.full_parameter(names[i]) != before[i];
                    findings.expect(moved == (i != 1), std::string(names[i]) +
                                                           (moved ? " has moved" : " is the same"));
                  }
                }
                if (world.rank() == 0) {
                  frozen = bucket;
                  before_change = static_cast<std::size_t>(gathers());
                }
                // An update that asks for its shard may change it: it is gathered anew.
                {
                  Update update = runtime.update();
                  for (float& weight : update.shard(bucket).weights) {
                    weight = 7.0F;
                  }
                }
                std::vector<float> changed(341, 7.0F);
                trainer.oracle.set(model.parameter("L0.b"), changed);
                trainer.step();
                trainer.step();
                trainer.expect_oracle();
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
    if (is_agreed(variant.options)) {
      CHECK(before_change == 1);
      CHECK(std::ranges::count_if(launches.of_rank[0], [&](const LaunchRecord& each) {
              return each.op == unshards_by(variant.options) && each.bucket == frozen &&
                     each.label != "for an export";
            }) == 2);
    }
  }
}

}  // namespace
}  // namespace troupe::test
