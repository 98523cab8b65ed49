/// Scenarios about the order of launches, under every strategy: orders that are learned, ranks that
/// differ, collectives of the trainer's own, parameters of layers around others.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/failing_d4.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <thread>

namespace troupe::test {
namespace {

TEST_CASE("S13: layers that run in another order than registered read this step's weights") {
  constexpr int steps = 4;
  const std::array<UnitId, 4> order{0, 2, 1, 3};
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                // The weights are the number of their last update.
                Runtime runtime(world, d4_model(), variant.options);
                runtime.initialize([](ParameterView) {});
                std::uint64_t misses = 0;
                for (int step = 0; step < steps; ++step) {
                  const std::uint64_t misses_before = misses;
                  const auto is_current = [&](const Use& use) {
                    findings.expect(
                        std::ranges::all_of(use["w"].as<float>(),
                                            [&](float p) { return p == static_cast<float>(step); }),
                        "weights of another step in step " + std::to_string(step));
                  };
                  {
                    const auto micro_batch = runtime.micro_batch();
                    for (const UnitId layer : order) {
                      is_current(runtime.forward(layer));
                    }
                    for (std::size_t i = order.size(); i-- > 0;) {
                      const Use use = runtime.backward(order[i]);
                      is_current(use);
                      std::ranges::fill(use.gradient("w").as<float>(), -1.0F);
                    }
                  }
                  runtime.finish_gradients();
                  Sgd({.learning_rate = 1.0F}).step(runtime);
                  const ScheduleCounters counters = runtime.report().schedule;
                  findings.equal(counters.hits + counters.misses, counters.uses, "hits and misses");
                  misses = counters.misses;
                  if (is_agreed(variant.options) && variant.options.overlap) {
                    // L2 is asked for before its turn once; then the order is the one in use.
                    findings.equal(misses - misses_before, step == 0 ? 1U : 0U,
                                   "misses of step " + std::to_string(step));
                  }
                }
                findings.expect(runtime.full_parameter("L2.w") ==
                                    std::vector<float>(1024, static_cast<float>(steps)),
                                "weights at the end");
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
    if (is_agreed(variant.options)) {
      // Behind the last update, too, the first bucket is gathered ahead.
      std::vector<BucketId> right{0, 1, 2, 3};
      for (int step = 1; step < steps; ++step) {
        right.insert(right.end(), order.begin(), order.end());
      }
      std::vector<BucketId> found = unshards(launches, variant.options);
      if (variant.options.overlap) {
        right.push_back(0);
      }
      CHECK(found == right);
    }
  }
}

TEST_CASE("S14: a collective of the trainer's own waits for no more gathers than are ahead") {
  constexpr UnitId layers = 32;
  for (const Strategy strategy : {Strategy::owner_broadcast, Strategy::sharded_optimizer}) {
    for (const int depth : {0, 1, 3}) {
      CAPTURE(static_cast<int>(strategy));
      CAPTURE(depth);
      Options options{.strategy = strategy, .prefetch_depth = depth};
      options.bucket_bytes = strategy == Strategy::sharded_optimizer ? 256 : 0;
      LaunchLog launches(4);
      CHECK(on_ranks(
                4,
                [&](World& world, Findings& findings) {
                  D4Trainer trainer(world, findings, d4_model(layers, 64), options);
                  trainer.stream = &world.host_device().create_host_stream("compute");
                  for (int step = 0; step < 3; ++step) {
                    {
                      const auto micro_batch = trainer.runtime.micro_batch();
                      for (UnitId layer = 0; layer < layers; ++layer) {
                        const Use use = trainer.runtime.forward(layer, trainer.stream);
                        if (layer == 1) {  // F+(1)
                          std::array<float, 3> values{};
                          values.fill(static_cast<float>(world.rank() + step));
                          world.all_reduce(values);
                          findings.expect(values[2] == static_cast<float>(6 + 4 * step), "the sum");
                        }
                        trainer.read(use, layer);
                      }
                      for (UnitId layer = layers; layer-- > 0;) {
                        trainer.backward(layer);
                      }
                    }
                    trainer.runtime.finish_gradients();
                    trainer.optimize();
                  }
                  trainer.wait_for_stream();
                  trainer.expect_oracle();
                },
                &launches) == "");
      CHECK(launches.same_on_all_ranks());
      // Before the all-reduce of each step: the gathers of the two layers used, and `depth` more.
      const auto& log = launches.of_rank[0];
      int gathers = 0;
      int all_reduces = 0;
      for (const LaunchRecord& launch : log) {
        gathers = launch.op == reduces_by(options) && launch.bucket != no_bucket ? 0 : gathers;
        gathers += launch.op == unshards_by(options) && launch.bucket != no_bucket ? 1 : 0;
        if (launch.op == Collective::all_reduce) {
          ++all_reduces;
          CHECK(gathers == 2 + depth);
        }
      }
      CHECK(all_reduces == 3);
    }
  }
}

/// Each rank runs forward in its own order and backward in the reverse of it.
void run_in_order(D4Trainer& trainer, const std::vector<UnitId>& order) {
  {
    const auto micro_batch = trainer.runtime.micro_batch();
    for (const UnitId layer : order) {
      trainer.forward(layer);
    }
    for (auto layer = order.rbegin(); layer != order.rend(); ++layer) {
      trainer.backward(*layer);
    }
  }
  trainer.runtime.finish_gradients();
  trainer.optimize();
}

TEST_CASE("S17: ranks that run the layers in another order are reconciled by the agreed order") {
  for (const D4Variant& variant : d4_agreed_variants()) {
    for (const bool shuffled : {false, true}) {
      for (const bool overlap : {true, false}) {
        for (const bool worker : {false, true}) {
          CAPTURE(std::string(variant.name));
          CAPTURE(shuffled);
          CAPTURE(overlap);
          CAPTURE(worker);
          Options options = overlap ? variant.options : without_overlap(variant.options);
          if (shuffled && options.gradient_slots) {
            options.gradient_slots = 4;  // any order, so any of them may have to wait
          }
          LaunchLog launches(4);
          CHECK(on_ranks(
                    4,
                    [&](World& world, Findings& findings) {
                      D4Trainer trainer(world, findings, d4_model(), options);
                      trainer.stream =
                          worker ? &world.host_device().create_host_stream("compute") : nullptr;
                      std::uint32_t random = static_cast<std::uint32_t>(world.rank()) + 1;
                      std::vector<UnitId> order{0, 1, 2, 3};
                      for (int step = 0; step < 6; ++step) {
                        if (shuffled) {
                          for (std::size_t i = order.size(); i-- > 1;) {
                            random = random * 1664525 + 1013904223;
                            std::swap(order[i], order[(random >> 8) % (i + 1)]);
                          }
                        } else if (world.rank() >= 2) {
                          order = {0, 2, 1, 3};
                        }
                        run_in_order(trainer, order);
                      }
                      trainer.wait_for_stream();
                      trainer.expect_oracle();
                    },
                    &launches) == "");
          CHECK(launches.same_on_all_ranks());
        }
      }
    }
  }
}

TEST_CASE("S17: where the order cannot be agreed on, ranks in another order are named") {
  struct Row {
    const char* name;
    Options options;
    const char* named;
  };
  Options regather = d4_options(2, 2, 0);
  regather.regather_group_size = 2;
  Options replicas = d4_options(2, 2, 0);
  replicas.mesh.replicate = 2;
  for (const Row& row :
       {Row{"full_shard", d4_options(2, 2, 0), "all_gather of bucket 1 'L1'"},
        Row{"not resharded",
            {.reshard_after_forward = false, .gradient_slots = 2, .prefetch_depth = 0},
            "all_gather of bucket 1 'L1'"},
        Row{"without overlap", without_overlap(d4_options()), "all_gather of bucket 1 'L1'"},
        Row{"gathered again among 2", regather, "all_gather of bucket 1 'L1'"},
        // Within each replica the ranks agree; the sums across them tell.
        Row{"two replicas", replicas, "all_reduce of bucket 2 'L2'"},
        // One gradient slot: the bucket that comes out of turn cannot wait for its own.
        Row{"sharded_optimizer, one gradient slot",
            {.strategy = Strategy::sharded_optimizer, .gradient_slots = 1, .prefetch_depth = 1},
            "reduce_scatter of bucket 2 'L2'"},
        Row{"owner_broadcast, one gradient slot",
            {.strategy = Strategy::owner_broadcast, .gradient_slots = 1, .prefetch_depth = 1},
            "reduce of bucket 2 'L2'"}}) {
    CAPTURE(std::string(row.name));
    FailingD4 branches;
    const Outcome outcome = branches.run(4, row.options, [](D4Trainer& trainer) {
      for (int step = 0; step < 3; ++step) {
        run_in_order(trainer, trainer.world.rank() < 2 ? std::vector<UnitId>{0, 1, 2, 3}
                                                       : std::vector<UnitId>{0, 2, 1, 3});
      }
    });
    CHECK(outcome.failure.value_or(Failure{}).code == ErrorCode::mismatch);
    CHECK(contains(outcome.text(), "launched another collective than rank"));
    CHECK_MESSAGE(contains(outcome.text(), row.named), outcome.text());
    for (const std::string& heard : outcome.heard) {
      CHECK(heard == outcome.text());
    }
    CHECK(branches.findings.text().empty());
    CHECK(outcome.took < std::chrono::seconds{10});
  }
}

}  // namespace
}  // namespace troupe::test
