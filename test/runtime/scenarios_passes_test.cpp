/// Scenarios about passes besides the plain step: evaluation, loading, recomputation.
#include "troupe/test/support/d4.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>

namespace troupe::test {
namespace {

TEST_CASE("S41: loaded weights are what the next forward reads") {
  for (const bool in_eval : {false, true}) {
    CAPTURE(in_eval);
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), d4_options(4, 2, 3));
            const auto forward = [&] {
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
            };
            forward();
            findings.equal(world.device().counters().unsharded_bytes.load(), 4 * 4096,
                           "bytes still gathered when the weights are loaded");
            for (ParameterId id = 0; id < 4; ++id) {
              std::vector<float> loaded = trainer.oracle.weights(id);
              for (float& p : loaded) {
                p = p + 1000.0F;
              }
              trainer.oracle.set(id, loaded);
            }
            trainer.runtime.initialize([&](ParameterView view) {
              std::ranges::copy(
                  trainer.oracle.weights(trainer.runtime.model().parameter(view.name)),
                  view.data.begin());
            });
            forward();  // compares every element
            trainer.expect_oracle();
            trainer.step();
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("S43: an evaluation in another order leaves the learned one alone, without a warning") {
  // Prefetch hits of each training step, with and without evaluations between them.
  const auto prefetch_hits = [](bool with_eval) {
    std::vector<std::uint64_t> hits;
    std::atomic<int> warnings{0};
    Findings findings;
    World::local(4, {.timeout = std::chrono::seconds{20},
                     .on_warning = [&](const std::string&) { ++warnings; }})
        .run([&](World& world) {
          D4Trainer trainer(world, findings, d4_model(), d4_options());
          const int at_construction = warnings;
          for (int step = 0; step < 4; ++step) {
            const std::uint64_t before = trainer.counters().prefetch_hits;
            trainer.step();
            if (world.rank() == 0) {
              hits.push_back(trainer.counters().prefetch_hits - before);
            }
            if (with_eval && step == 1) {
              {
                const auto eval = trainer.runtime.eval();
                for (const UnitId layer : {0U, 1U, 1U, 2U}) {
                  trainer.forward(layer);
                }
              }
              // L3 was gathered ahead, for nothing; L2 may be used again.
              findings.equal(world.device().counters().unsharded_bytes.load(), 4096,
                             "bytes gathered after the evaluation");
            }
          }
          trainer.expect_oracle();
          findings.equal(warnings.load(), at_construction, "warnings");
        });
    CHECK(findings.text() == "");
    return hits;
  };
  CHECK(prefetch_hits(false) == std::vector<std::uint64_t>{6, 6, 6, 6});
  // The evaluation has used the bucket that the update gathered ahead, and needed its slot: the
  // first layer of the step behind it is gathered on demand. All others are where they were
  // expected.
  CHECK(prefetch_hits(true) == std::vector<std::uint64_t>{6, 6, 5, 6});
}

TEST_CASE("S44: with recomputation no layer is gathered more than twice in a step") {
  constexpr UnitId layers = 8;
  for (const int slots : {2, 3, 4}) {
    for (const bool within : {false, true}) {  // the recomputation lies within its backward
      CAPTURE(slots);
      CAPTURE(within);
      LaunchLog launches(4);
      std::vector<std::size_t> ends{0};  // of steps, in rank 0's gathers
      CHECK(on_ranks(
                4,
                [&](World& world, Findings& findings) {
                  D4Trainer trainer(world, findings, d4_model(layers, 256),
                                    d4_options(slots, 2, slots - 1));
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
      const std::vector<BucketId> gathers = launches.buckets(Collective::all_gather);
      REQUIRE(ends.size() == 5);
      REQUIRE(gathers.size() >= ends.back());
      for (std::size_t step = 1; step < ends.size(); ++step) {
        const auto first = gathers.begin() + static_cast<std::ptrdiff_t>(ends[step - 1]);
        const auto last = gathers.begin() + static_cast<std::ptrdiff_t>(ends[step]);
        CHECK(last - first <= 15);  // the last layer is kept across the turn
        for (BucketId bucket = 0; bucket < layers; ++bucket) {
          CHECK(std::count(first, last, bucket) <= 2);
        }
      }
      CHECK(std::ranges::count(launches.buckets(Collective::reduce_scatter), BucketId{0}) == 4);
    }
  }
}

}  // namespace
}  // namespace troupe::test
