/// Scenarios about uses out of the ordinary, under every strategy: a unit used twice, without a
/// backward, on some ranks only.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/failing_d4.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

namespace troupe::test {
namespace {

TEST_CASE("S21: a unit used twice before backward is reduced once, with the sum of both uses") {
  for (const D4Variant& variant : d4_variants()) {
    for (const bool mean : {false, true}) {
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(mean);
      Options options = variant.options;
      options.gradient_divisor = mean ? std::nullopt : std::optional(1.0F);
      LaunchLog launches(4);
      CHECK(on_ranks(
                4,
                [&](World& world, Findings& findings) {
                  D4Trainer trainer(world, findings, d4_model(3), options);
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
      CHECK(launches.buckets(reduces_by(options)) == std::vector<BucketId>{2, 1, 0});
    }
  }
}

TEST_CASE("S26: a unit without a backward counts as zero gradient, and leaves nothing behind") {
  Model model;
  for (UnitId layer = 0; layer < 4; ++layer) {
    const UnitId unit = model.add_unit("L" + std::to_string(layer));
    model.add_parameter(unit, {.name = "a", .shape = {512}});
    model.add_parameter(unit, {.name = "b", .shape = {512}});
  }
  for (const D4Variant& variant : d4_variants()) {
    for (const bool half : {false, true}) {  // the unit has a backward that leaves `b` out
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(half);
      Options options = variant.options;
      options.bucket_bytes = 4096;  // one bucket for each layer
      CHECK(on_ranks(4, [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, model, options);
              trainer.step();  // main gradients and slots hold something from now on
              const std::vector<float> a = trainer.runtime.full_parameter("L1.a");
              const std::vector<float> b = trainer.runtime.full_parameter("L1.b");
              {
                const auto micro_batch = trainer.runtime.micro_batch();
                for (UnitId layer = 0; layer < 4; ++layer) {
                  trainer.forward(layer);
                }
                trainer.backward(3);
                trainer.backward(2);
                if (half) {
                  trainer.backward(1, 1.0F, 2);
                }
                trainer.backward(0);
              }
              trainer.runtime.finish_gradients();
              trainer.optimize();
              findings.expect(trainer.runtime.full_parameter("L1.b") == b, "L1.b has moved");
              findings.expect((trainer.runtime.full_parameter("L1.a") != a) == half,
                              "L1.a has moved, or should have");
              trainer.expect_oracle();
              const std::uint64_t reduces = trainer.counters().reduces;
              trainer.step();
              findings.equal(trainer.counters().reduces - reduces, 4U, "reduces of the next step");
              trainer.expect_oracle();
            }) == "");
    }
  }
}

TEST_CASE("S26: one gradient slot is enough where a unit has no backward on any rank") {
  for (const Strategy strategy : {Strategy::owner_broadcast, Strategy::sharded_optimizer}) {
    CAPTURE(static_cast<int>(strategy));
    const Options options{.strategy = strategy, .gradient_slots = 1, .prefetch_depth = 1};
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), options);
            {
              const auto micro_batch = trainer.runtime.micro_batch();
              for (UnitId layer = 0; layer < 4; ++layer) {
                trainer.forward(layer);
              }
              for (const UnitId layer : {3U, 2U, 0U}) {
                trainer.backward(layer);
              }
            }  // the gradient of L0 held the only slot, that of L1 had none for its zeros
            trainer.runtime.finish_gradients();
            findings.equal(trainer.counters().reduces, 4U, "reduces");
            findings.equal(trainer.counters().zero_reduces, 1U, "reduces of zeros");
            trainer.optimize();
            trainer.expect_oracle();
          }) == "");
  }
}

/// Forward and backward in which `absent` is used by some ranks only. Under full_shard the others
/// say so.
void run_partly(D4Trainer& trainer, UnitId absent, bool uses, bool says) {
  {
    const auto micro_batch = trainer.runtime.micro_batch();
    for (UnitId layer = 0; layer < 4; ++layer) {
      if (layer != absent || uses) {
        trainer.forward(layer);
      } else if (says) {
        trainer.runtime.skip(layer);
      }
    }
    for (UnitId layer = 4; layer-- > 0;) {
      if (layer != absent || uses) {
        trainer.backward(layer);
      } else if (says) {
        trainer.runtime.skip(layer, Pass::backward);
      }
    }
  }
  trainer.runtime.finish_gradients();
}

TEST_CASE("S25, S32: a unit used on some ranks only is summed over those, the same on all ranks") {
  const std::vector<std::vector<int>> subsets{{0, 1}, {1, 2, 3}, {3}, {0}, {}};
  for (const D4Variant& variant : d4_variants()) {
    for (const std::vector<int>& users : subsets) {
      for (UnitId absent = 0; absent < 4; ++absent) {
        CAPTURE(std::string(variant.name));
        CAPTURE(variant.options.overlap);
        CAPTURE(users.size());
        CAPTURE(absent);
        float sum = 0.0F;
        for (const int user : users) {
          sum += d4_gradient(user, absent);
        }
        if (users == std::vector<int>{0, 1} && absent == 2) {
          CHECK(sum == 9.0F);
        }
        LaunchLog launches(4);
        CHECK(on_ranks(
                  4,
                  [&](World& world, Findings& findings) {
                    D4Trainer trainer(world, findings, d4_model(), variant.options);
                    const bool agreed = is_agreed(variant.options);
                    const bool uses = std::ranges::count(users, world.rank()) > 0;
                    for (int step = 0; step < 3; ++step) {
                      run_partly(trainer, absent, uses, !agreed);
                      // What the fixture takes for granted, that all ranks do, put right.
                      trainer.oracle.contribute(absent,
                                                sum - (uses ? d4_gradient_sum(4, absent) : 0.0F));
                      trainer.expect_gradients([&](BucketId bucket) {
                        return (bucket == absent ? sum : d4_gradient_sum(4, bucket)) / 4.0F;
                      });
                      trainer.optimize();
                      // Counted at initialisation, by the look at gradients, and by the optimizer.
                      findings.equal(trainer.runtime.version(absent),
                                     static_cast<std::uint64_t>(1 + 2 * (step + 1)),
                                     "updates of the bucket");
                    }
                    findings.equal(trainer.counters().reduces, 12U, "reduces");
                    findings.equal(trainer.counters().zero_reduces, agreed && !uses ? 3U : 0U,
                                   "reduces of zeros");
                    trainer.expect_oracle();
                    trainer.step();  // and all is as ever
                    trainer.expect_oracle();
                  },
                  &launches) == "");
        CHECK(launches.same_on_all_ranks());
      }
    }
  }
}

TEST_CASE("S32: under full_shard a unit left out without a word ends all ranks with an error") {
  constexpr std::chrono::milliseconds timeout{500};
  for (const D4Variant& variant : d4_full_shard_variants()) {
    for (const bool overlap : {true, false}) {
      for (const int users : {2, 3}) {
        CAPTURE(std::string(variant.name));
        CAPTURE(overlap);
        CAPTURE(users);
        FailingD4 branches;
        const Outcome outcome = branches.run(
            4, overlap ? variant.options : without_overlap(variant.options),
            [&](D4Trainer& trainer) {
              for (int step = 0; step < 2; ++step) {
                run_partly(trainer, 2, trainer.world.rank() < users, false);
                trainer.optimize();
              }
            },
            timeout);
        // Either the ranks meet with different collectives, or some wait for the others.
        REQUIRE(outcome.failure.has_value());
        CHECK((outcome.failure->code == ErrorCode::mismatch ||
               outcome.failure->code == ErrorCode::timeout));
        CHECK_MESSAGE(contains(outcome.text(), "expected "), outcome.text());
        CHECK(contains(outcome.text(), "actual"));
        // Which difference is met first is open with overlap: that the bucket is another, or that
        // launches are missing before it. A whole replica meets the other where they are summed.
        const bool whole_replica = variant.options.mesh.replicate > 1 && users == 2;
        if (!overlap) {
          CHECK_MESSAGE(contains(outcome.text(), whole_replica ? "(ticket)" : "bucket 2 'L2'"),
                        outcome.text());
        }
        for (const std::string& heard : outcome.heard) {
          CHECK(heard == outcome.text());
        }
        CHECK(branches.findings.text().empty());
        CHECK(outcome.took < timeout + std::chrono::seconds{5});
      }
    }
  }
}

TEST_CASE("S36: a rank that stops early is named with the step after which it left") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    FailingD4 ranks;
    const Outcome outcome = ranks.run(4, variant.options, [&](D4Trainer& trainer) {
      for (int step = 0; step < 8; ++step) {
        if (trainer.world.rank() == 3 && step == 5) {
          return;
        }
        trainer.step();
      }
    });
    CHECK_MESSAGE(contains(outcome.text(), "rank 3 has left the world after step 5"),
                  outcome.text());
    CHECK(outcome.failure.value_or(Failure{}).code == ErrorCode::peer_failed);
    CHECK(outcome.failure.value_or(Failure{}).rank == 3);
    for (const int rank : {0, 1, 2}) {
      CHECK(outcome.heard[static_cast<std::size_t>(rank)] == outcome.text());
    }
    CHECK(outcome.took < std::chrono::seconds{10});
    CHECK(ranks.findings.text().empty());
  }
}

}  // namespace
}  // namespace troupe::test
