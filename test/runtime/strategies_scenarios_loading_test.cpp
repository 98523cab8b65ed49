/// Scenarios about loading, under every strategy: what the next forward reads, and what a forward
/// still reads.
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace troupe::test {
namespace {

TEST_CASE("S41: loaded weights are what the next forward reads") {
  for (const D4Variant& variant : d4_variants()) {
    for (const bool in_eval : {false, true}) {
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(in_eval);
      CHECK(on_ranks(4, [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, d4_model(), variant.options);
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
              findings.expect(world.device().counters().unsharded_bytes > 0,
                              "nothing is gathered when the weights are loaded");
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
}

TEST_CASE("S41: weights are not loaded over those that a worker stream still reads") {
  for (const D4Variant& variant : d4_variants()) {
    if (!variant.options.overlap && !is_agreed(variant.options)) {
      continue;  // a gather waits for the computation whose slot it takes, and the call for it
    }
    for (const bool in_eval : {false, true}) {
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(in_eval);
      CHECK(on_ranks(4, [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, d4_model(), variant.options);
              trainer.stream = &world.host_device().create_host_stream("compute");
              Gate computation;
              computation.close(*trainer.stream);
              const auto forward = [&] {
                for (UnitId layer = 0; layer < 4; ++layer) {
                  trainer.forward(layer);
                }
              };
              if (in_eval) {
                const auto eval = trainer.runtime.eval();
                forward();
              } else {
                const auto micro_batch = trainer.runtime.micro_batch();
                forward();
              }
              std::atomic<bool> loading{false};
              const std::jthread opener([&] {
                while (!loading) {
                  std::this_thread::yield();
                }
                // Time enough for an update that does not wait to be found out.
                std::this_thread::sleep_for(std::chrono::milliseconds{10});
                computation.open();
              });
              std::vector<std::vector<float>> loaded;
              for (ParameterId id = 0; id < 4; ++id) {
                loaded.emplace_back(1024, static_cast<float>(1000 + id));
                trainer.oracle.set(id, loaded.back());
              }
              loading = true;
              trainer.runtime.initialize([&](ParameterView view) {
                std::ranges::copy(loaded[trainer.runtime.model().parameter(view.name)],
                                  view.data.begin());
              });
              trainer.step();
              trainer.wait_for_stream();
              trainer.expect_oracle();
            }) == "");
    }
  }
}

}  // namespace
}  // namespace troupe::test
