/// Scenarios about the order of launches: learned orders, collectives of the trainer's own, several
/// buckets in a unit, parameters outside units.
#include "troupe/test/support/d4.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>

namespace troupe::test {
namespace {

TEST_CASE("S13: layers that run in another order than registered read this step's weights") {
  constexpr int steps = 4;
  const std::array<UnitId, 4> order{0, 2, 1, 3};
  for (const int depth : {0, 1, 3}) {
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            // The weights are the number of their last update.
            Runtime runtime(world, d4_model(), d4_options(2, 2, depth));
            runtime.initialize([](ParameterView) {});
            std::uint64_t misses = 0;
            for (int step = 0; step < steps; ++step) {
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
              findings.equal(counters.uses, static_cast<std::uint64_t>(8 * (step + 1)), "uses");
              if (step > 0 && depth > 0) {
                findings.equal(counters.misses, misses, "misses once the order is learned");
              }
              misses = counters.misses;
            }
            findings.expect(depth == 0 || misses > 0,
                            "the first step has no miss: no test of this");
            findings.expect(runtime.full_parameter("L2.w") ==
                                std::vector<float>(1024, static_cast<float>(steps)),
                            "weights at the end");
          }) == "");
  }
}

TEST_CASE("S14: collectives of the trainer's own, between any two events, keep one order") {
  constexpr UnitId layers = 32;
  for (const bool worker : {false, true}) {
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                Options options{.slots = 4, .prefetch_depth = 3};
                D4Trainer trainer(world, findings, d4_model(layers, 64), options);
                trainer.stream =
                    worker ? &world.host_device().create_host_stream("compute") : nullptr;
                int calls = 0;
                const auto reduce_own = [&] {
                  ++calls;
                  std::array<float, 3> values{};
                  values.fill(static_cast<float>(world.rank() + calls));
                  world.all_reduce(values);
                  findings.expect(
                      values[0] == static_cast<float>(6 + 4 * calls) && values[2] == values[0],
                      "the sum of call " + std::to_string(calls));
                };
                for (int step = 0; step < 3; ++step) {
                  {
                    const auto micro_batch = trainer.runtime.micro_batch();
                    for (UnitId layer = 0; layer < layers; ++layer) {
                      const Use use = trainer.runtime.forward(layer, trainer.stream);
                      if (layer == 1 || (layer * 7 + static_cast<UnitId>(step)) % 5 == 0) {
                        reduce_own();  // inside a use
                      }
                      trainer.read(use, layer);
                    }
                    reduce_own();
                    for (UnitId layer = layers; layer-- > 0;) {
                      trainer.backward(layer);
                      if (layer % 3 == 0) {
                        reduce_own();
                      }
                    }
                  }
                  reduce_own();
                  trainer.runtime.finish_gradients();
                  reduce_own();
                  trainer.optimize();
                  reduce_own();
                }
                trainer.wait_for_stream();
                trainer.expect_oracle();
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
    // No more gathers lie before the first all-reduce than depth and slots allow.
    std::size_t gathers = 0;
    for (const LaunchRecord& record : launches.of_rank[0]) {
      if (record.op == Collective::all_reduce) {
        break;
      }
      gathers += record.op == Collective::all_gather && record.bucket != no_bucket ? 1U : 0U;
    }
    CHECK(gathers <= 5);
  }
}

TEST_CASE("S16: the order in which gradients or parameters are asked for does not order launches") {
  constexpr int trials = 200;
  const std::array<const char*, 3> names{"a", "b", "c"};
  Model model;
  const UnitId unit = model.add_unit("L0");
  for (std::size_t i = 0; i < names.size(); ++i) {
    model.add_parameter(
        unit, {.name = names[i], .shape = {256 * (2 * static_cast<std::int64_t>(i) + 3)}});
  }
  Options options;
  options.bucket_bytes = 1;  // each parameter is a bucket: 3, 5 and 7 KiB
  for (const bool in_forward : {false, true}) {
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, model, options);
                std::uint32_t random = static_cast<std::uint32_t>(world.rank()) + 1;
                const auto shuffled = [&] {
                  std::array<std::size_t, 3> order{0, 1, 2};
                  for (std::size_t i = order.size(); i-- > 1;) {
                    random = random * 1664525 + 1013904223;
                    std::swap(order[i], order[random % (i + 1)]);
                  }
                  return order;
                };
                for (int trial = 0; trial < trials; ++trial) {
                  {
                    const auto micro_batch = trainer.runtime.micro_batch();
                    {
                      const Use use = trainer.runtime.forward(unit);
                      for (const std::size_t index :
                           in_forward ? shuffled() : std::array<std::size_t, 3>{}) {
                        static_cast<void>(use[names[index]]);
                      }
                      trainer.read(use, unit);
                    }
                    const Use use = trainer.runtime.backward(unit);
                    for (const std::size_t index : shuffled()) {
                      const GradientView view = use.gradient(names[index]);
                      std::ranges::fill(view.as<float>(), d4_gradient(world.rank(), 0));
                      trainer.oracle.contribute(static_cast<ParameterId>(index),
                                                d4_gradient_sum(4, 0));
                    }
                  }
                  trainer.runtime.finish_gradients();
                  trainer.optimize();
                }
                trainer.expect_oracle();
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
    for (const Collective op : {Collective::all_gather, Collective::reduce_scatter}) {
      const std::vector<BucketId> buckets = launches.buckets(op);
      REQUIRE(buckets.size() >= static_cast<std::size_t>(trials) * 3);
      std::size_t in_plan_order = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(trials) * 3; ++i) {
        in_plan_order += buckets[i] == i % 3 ? 1U : 0U;
      }
      CHECK(in_plan_order == trials * 3);
    }
  }
}

TEST_CASE("S20: a parameter of the model itself is gathered before it is used, in every step") {
  Model model = d4_model();
  model.add_parameter({.name = "own", .shape = {256}});
  const UnitId root = model.root();
  for (const bool around_all : {false, true}) {
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                Options options = d4_options(3, 3);
                D4Trainer trainer(world, findings, model, options);
                const auto within_root = [&](bool backward, const std::function<void()>& inner) {
                  const Use use =
                      backward ? trainer.runtime.backward(root) : trainer.runtime.forward(root);
                  trainer.read(use, root);
                  inner();
                  trainer.read(use, root);
                  if (backward) {
                    trainer.contribute(use, root, 1.0F);
                  }
                };
                const auto layers = [&](bool backward) {
                  for (UnitId i = 0; i < 4; ++i) {
                    const UnitId layer = backward ? 3 - i : i;
                    const auto run = [&] {
                      backward ? trainer.backward(layer) : trainer.forward(layer);
                    };
                    if (!around_all && layer == 3) {
                      within_root(backward, run);
                    } else {
                      run();
                    }
                  }
                };
                for (int step = 0; step < 3; ++step) {
                  {
                    const auto micro_batch = trainer.runtime.micro_batch();
                    for (const bool backward : {false, true}) {
                      if (around_all) {
                        within_root(backward, [&] { layers(backward); });
                      } else {
                        layers(backward);
                      }
                    }
                  }
                  trainer.runtime.finish_gradients();
                  trainer.optimize();
                }
                trainer.expect_oracle();
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
    CHECK(std::ranges::count(launches.buckets(Collective::all_gather), BucketId{4}) >= 3);
    CHECK(std::ranges::count(launches.buckets(Collective::reduce_scatter), BucketId{4}) == 3);
  }
}

}  // namespace
}  // namespace troupe::test
