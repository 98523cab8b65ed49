/// Scenarios about gradient slots, under every strategy: a backward that finds none waits, and none
/// is written while it is being reduced.
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

namespace troupe::test {
namespace {

/// Those whose gradient slots are used in turn.
std::vector<D4Variant> freeing_variants() {
  std::vector<D4Variant> variants = d4_variants();
  std::erase_if(variants, [](const D4Variant& each) { return !each.options.free_full_gradients; });
  return variants;
}

TEST_CASE(
    "S04: a backward that finds all gradient slots being reduced waits for the first of them") {
  for (const D4Variant& variant : freeing_variants()) {
    if (!variant.options.overlap) {
      continue;  // the call before has waited for the reduce
    }
    for (const bool worker : {false, true}) {
      CAPTURE(std::string(variant.name));
      CAPTURE(worker);
      LaunchLog launches(4);
      CHECK(on_ranks(
                4,
                [&](World& world, Findings& findings) {
                  Options options = variant.options;
                  if (options.slots) {
                    options.slots = 4;
                  }
                  D4Trainer trainer(world, findings, d4_model(), options);
                  trainer.stream =
                      worker ? &world.host_device().create_host_stream("compute") : nullptr;
                  const std::string rank = "rank " + std::to_string(world.rank()) + ": ";
                  Gate reduces;
                  std::atomic<bool> asking{false};
                  std::atomic<bool> served{false};
                  {
                    const auto micro_batch = trainer.runtime.micro_batch();
                    for (UnitId layer = 0; layer < 4; ++layer) {
                      trainer.forward(layer);
                    }
                    reduces.close(stream_of(world, "reduce"));
                    trainer.backward(3);
                    trainer.backward(2);
                    const std::jthread opener([&] {
                      while (!asking) {
                        std::this_thread::yield();
                      }
                      // Time enough for a third request that does not wait to be found out.
                      std::this_thread::sleep_for(std::chrono::milliseconds{10});
                      findings.expect(!served, rank + "a slot being reduced was given away");
                      reduces.open();
                    });
                    asking = true;
                    {
                      const Use third = trainer.runtime.backward(1, trainer.stream);
                      trainer.compute([&] { served = true; });
                      trainer.contribute(third, 1, 1.0F);
                    }
                    trainer.backward(0);
                  }
                  trainer.runtime.finish_gradients();
                  trainer.wait_for_stream();
                  findings.expect(served, rank + "the third request was never served");
                  trainer.optimize();
                  trainer.expect_oracle();
                },
                &launches) == "");
      CHECK(launches.same_on_all_ranks());
      CHECK(launches.buckets(reduces_by(variant.options)) == std::vector<BucketId>{3, 2, 1, 0});
    }
  }
}

TEST_CASE("S07: a gradient slot is not written while a reduce still reads it") {
  for (const D4Variant& variant : d4_variants()) {
    for (const bool worker : {false, true}) {
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(worker);
      Options options = variant.options;
      options.gradient_divisor = 1.0F;
      CHECK(on_ranks(4, [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, d4_model(), options);
              trainer.stream =
                  worker ? &world.host_device().create_host_stream("compute") : nullptr;
              HostStream& reduces = stream_of(world, "reduce");
              for (int step = 0; step < 3; ++step) {
                {
                  const auto micro_batch = trainer.runtime.micro_batch();
                  for (UnitId layer = 0; layer < 4; ++layer) {
                    trainer.forward(layer);
                  }
                  for (UnitId layer = 4; layer-- > 0;) {
                    reduces.run([] { std::this_thread::sleep_for(std::chrono::milliseconds{1}); });
                    trainer.backward(layer);
                  }
                }
                trainer.runtime.finish_gradients();
                trainer.expect_gradients(
                    [](BucketId bucket) { return 10.0F * static_cast<float>(bucket + 1); });
              }
              trainer.wait_for_stream();
            }) == "");
    }
  }
}

}  // namespace
}  // namespace troupe::test
