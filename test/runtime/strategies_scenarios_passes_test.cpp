/// Scenarios about passes besides the plain step, under every strategy: evaluation, recomputation.
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>

namespace troupe::test {
namespace {

TEST_CASE("S42: a forward-only pass between training steps disturbs nothing") {
  for (const D4Variant& variant : d4_variants()) {
    for (const bool in_eval : {true, false}) {  // or as a micro-batch without a backward
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(in_eval);
      LaunchLog launches(4);
      CHECK(on_ranks(
                4,
                [&](World& world, Findings& findings) {
                  D4Trainer trainer(world, findings, d4_model(), variant.options);
                  for (int step = 0; step < 3; ++step) {
                    trainer.step();
                  }
                  const auto layers = [&] {
                    for (UnitId layer = 0; layer < 4; ++layer) {
                      trainer.forward(layer);
                    }
                  };
                  if (in_eval) {
                    const auto eval = trainer.runtime.eval();
                    layers();
                  } else {
                    const auto micro_batch = trainer.runtime.micro_batch();
                    layers();
                  }
                  findings.expect(world.device().counters().unsharded_bytes <=
                                      trainer.runtime.memory_plan().parameters.bytes,
                                  "more is gathered than there are slots for");
                  RankActors& actors = world.context().actors();
                  actors.wait(actors.next_ticket() - 1, [] { return true; }, "the launches");
                  findings.expect(actors.quiesce(std::chrono::seconds{20}), "gathers do not end");
                  findings.equal(actors.state().completed.load(), actors.next_ticket() - 1,
                                 "tickets completed");
                  for (int step = 0; step < 3; ++step) {
                    trainer.step();
                  }
                  trainer.expect_oracle();  // of six steps
                  // Where the ranks follow one order, each micro-batch reduces every bucket.
                  const bool zeros = is_agreed(variant.options) && !in_eval;
                  findings.equal(trainer.counters().reduces, zeros ? 28U : 24U, "reduces");
                  findings.equal(trainer.counters().zero_reduces, zeros ? 4U : 0U,
                                 "reduces of zeros");
                },
                &launches) == "");
      CHECK(launches.same_on_all_ranks());
    }
  }
}

struct Pass43 {
  std::vector<std::uint64_t> prefetch_hits;  ///< per training step
  std::vector<std::uint64_t> misses;
  std::vector<std::uint64_t> gathers;
};

/// Four training steps; behind the second an evaluation in another order, that skips L2 and L3.
Pass43 train_and_evaluate(const Options& options, bool with_eval) {
  Pass43 pass;
  std::atomic<int> warnings{0};
  Findings findings;
  World::local(4, {.timeout = std::chrono::seconds{20},
                   .on_warning = [&](const std::string&) { ++warnings; }})
      .run([&](World& world) {
        D4Trainer trainer(world, findings, d4_model(), options);
        const int at_construction = warnings;
        for (int step = 0; step < 4; ++step) {
          const ScheduleCounters before = trainer.counters();
          trainer.step();
          const ScheduleCounters after = trainer.counters();
          if (world.rank() == 0) {
            pass.prefetch_hits.push_back(after.prefetch_hits - before.prefetch_hits);
            pass.misses.push_back(after.misses - before.misses);
            pass.gathers.push_back(after.gathers - before.gathers);
          }
          if (with_eval && step == 1) {
            const auto eval = trainer.runtime.eval();
            for (const UnitId layer : {1U, 1U, 0U}) {
              trainer.forward(layer);
            }
          }
        }
        trainer.expect_oracle();
        findings.equal(warnings.load(), at_construction, "warnings");
      });
  CHECK(findings.text() == "");
  return pass;
}

TEST_CASE("S43: an evaluation in another order leaves the learned one alone, without a warning") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    const Pass43 plain = train_and_evaluate(variant.options, false);
    const Pass43 evaluated = train_and_evaluate(variant.options, true);
    // Of the step behind it, some is there already; the one after that is as if it had not been.
    CHECK(evaluated.prefetch_hits[1] == plain.prefetch_hits[1]);
    CHECK(evaluated.prefetch_hits[3] == plain.prefetch_hits[3]);
    CHECK(evaluated.misses[3] == plain.misses[3]);
    CHECK(evaluated.gathers[3] == plain.gathers[3]);
    if (is_agreed(variant.options) && variant.options.overlap) {
      CHECK(plain.misses == std::vector<std::uint64_t>{0, 0, 0, 0});
      CHECK(evaluated.misses == plain.misses);
      // Counted from update to update: the first of a step is ahead of it. The evaluation has
      // gathered the other three, with those that it does not use.
      CHECK(plain.gathers == std::vector<std::uint64_t>{4, 4, 4, 4});
      CHECK(evaluated.gathers == std::vector<std::uint64_t>{4, 4, 1, 4});
    }
  }
}

TEST_CASE("S44: with recomputation no layer is gathered more often than without") {
  constexpr UnitId layers = 8;
  for (const D4Variant& variant : d4_variants()) {
    for (const bool within : {false, true}) {  // the recomputation lies within its backward
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(within);
      LaunchLog launches(4);
      std::vector<std::uint64_t> ends{0};  // of steps, in rank 0's gathers
      CHECK(on_ranks(
                4,
                [&](World& world, Findings& findings) {
                  D4Trainer trainer(world, findings, d4_model(layers, 256), variant.options);
                  for (int step = 0; step < 4; ++step) {
                    {
                      const auto micro_batch = trainer.runtime.micro_batch();
                      for (UnitId layer = 0; layer < layers; ++layer) {
                        trainer.forward(layer);
                      }
                      for (UnitId layer = layers; layer-- > 0;) {
                        if (!within) {
                          trainer.forward(layer);
                        }
                        const Use use = trainer.runtime.backward(layer);
                        if (within) {
                          trainer.forward(layer);
                        }
                        trainer.read(use, layer);
                        trainer.contribute(use, layer, 1.0F);
                      }
                    }
                    trainer.runtime.finish_gradients();
                    if (world.rank() == 0) {
                      ends.push_back(trainer.counters().gathers);
                    }
                    trainer.optimize();
                  }
                  trainer.expect_oracle();
                },
                &launches) == "");
      CHECK(launches.same_on_all_ranks());
      const bool stay = is_agreed(variant.options) || !variant.options.reshard_after_forward;
      const std::vector<BucketId> gathers = launches.buckets(unshards_by(variant.options));
      REQUIRE(ends.size() == 5);
      REQUIRE(gathers.size() >= ends.back());
      for (std::size_t step = 1; step < ends.size(); ++step) {
        const auto first = gathers.begin() + static_cast<std::ptrdiff_t>(ends[step - 1]);
        const auto last = gathers.begin() + static_cast<std::ptrdiff_t>(ends[step]);
        CHECK(last - first <= (stay ? 8 : 15));  // the last layer is kept across the turn
        for (BucketId bucket = 0; bucket < layers; ++bucket) {
          CHECK(std::count(first, last, bucket) <= (stay ? 1 : 2));
        }
      }
      CHECK(std::ranges::count(launches.buckets(reduces_by(variant.options)), BucketId{0}) == 4);
    }
  }
}

}  // namespace
}  // namespace troupe::test
