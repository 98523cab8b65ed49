/// Updates on a worker stream, under every strategy: nothing of the step behind them runs into
/// them, and they run into nothing of the step before.
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

namespace troupe::test {
namespace {

/// SGD on `stream`, bucket by bucket; `before` is called before each.
void update_on(D4Trainer& trainer,
               HostStream& stream,
               const std::function<void(BucketId)>& before) {
  Update update = trainer.runtime.update(&stream);
  for (std::size_t index = 0; index < update.shard_count(); ++index) {
    const ShardView shard = update.shard(index);
    before(shard.bucket);
    stream.run([shard] {
      for (std::size_t i = 0; i < shard.gradients.size(); ++i) {
        shard.weights[i] = shard.weights[i] - d4_learning_rate * shard.gradients[i];
      }
    });
    update.finish(shard.bucket);
  }
  trainer.oracle.step(static_cast<float>(trainer.world.size()));
}

void wait_for(HostStream& stream) {
  FutexWaiter waiter;
  const Event end = stream.record();
  while (!end.done()) {
    static_cast<void>(waiter.wait([&] { return end.done(); },
                                  Clock::steady().now() + std::chrono::milliseconds{1}));
  }
}

TEST_CASE("an update on a worker stream is what the next step reads") {
  for (const D4Variant& variant : d4_variants()) {
    for (const bool one_stream : {false, true}) {  // the layers are computed on the same one
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(one_stream);
      CHECK(on_ranks(4, [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, d4_model(), variant.options);
              HostStream& stream = world.host_device().create_host_stream("optimizer");
              trainer.stream =
                  one_stream ? &stream : &world.host_device().create_host_stream("compute");
              for (int step = 0; step < 4; ++step) {
                trainer.micro_batch();
                trainer.runtime.finish_gradients();
                update_on(trainer, stream, [&](BucketId) {
                  stream.run([] { std::this_thread::sleep_for(std::chrono::microseconds{200}); });
                });
              }
              trainer.wait_for_stream();
              trainer.expect_oracle();
            }) == "");
    }
  }
}

TEST_CASE("an update on a worker stream begins when the uses before it have been computed") {
  for (const D4Variant& variant : d4_variants()) {
    if (!variant.options.overlap && !is_agreed(variant.options)) {
      continue;  // a gather waits for the computation whose slot it takes, and the call for it
    }
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), variant.options);
            HostStream& stream = world.host_device().create_host_stream("optimizer");
            trainer.stream = &world.host_device().create_host_stream("compute");
            Gate computation;
            computation.close(*trainer.stream);
            {
              const auto eval = trainer.runtime.eval();
              for (UnitId layer = 0; layer < 4; ++layer) {
                trainer.forward(layer);
              }
            }
            std::atomic<bool> updating{false};
            const std::jthread opener([&] {
              while (!updating) {
                std::this_thread::yield();
              }
              // Time enough for an update that does not wait to be found out.
              std::this_thread::sleep_for(std::chrono::milliseconds{10});
              computation.open();
            });
            updating = true;
            {
              Update update = trainer.runtime.update(&stream);
              for (std::size_t index = 0; index < update.shard_count(); ++index) {
                const ShardView shard = update.shard(index);
                stream.run([shard] { std::ranges::fill(shard.weights, 7.0F); });
                update.finish(shard.bucket);
              }
            }
            for (ParameterId id = 0; id < 4; ++id) {
              trainer.oracle.set(id, std::vector<float>(1024, 7.0F));
            }
            trainer.step();
            trainer.wait_for_stream();
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("the zeros of a unit that is left out do not reach the update before") {
  constexpr UnitId absent = 3;
  for (D4Variant variant : d4_variants()) {
    if (variant.options.slots) {
      variant.options.slots = 4;  // or a backward would gather again, behind the update
    }
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    if (!variant.options.overlap && !is_agreed(variant.options)) {
      continue;  // the call waits for the gather, which waits for the update
    }
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), variant.options);
            HostStream& stream = world.host_device().create_host_stream("optimizer");
            Gate last_update;
            std::atomic<bool> reducing{false};
            const std::jthread opener([&] {
              while (!reducing) {
                std::this_thread::yield();
              }
              // Time enough for a reduce that does not wait to be found out.
              std::this_thread::sleep_for(std::chrono::milliseconds{10});
              last_update.open();
            });
            trainer.micro_batch();
            trainer.runtime.finish_gradients();
            update_on(trainer, stream, [&](BucketId bucket) {
              if (bucket == absent) {
                last_update.close(stream);
              }
            });
            {
              const auto scope = trainer.runtime.micro_batch();
              for (UnitId layer = 0; layer < absent; ++layer) {
                trainer.forward(layer);
              }
              if (!is_agreed(variant.options)) {
                trainer.runtime.skip(absent);
                trainer.runtime.skip(absent, Pass::backward);
              }
              reducing = true;
              for (UnitId layer = absent; layer-- > 0;) {
                trainer.backward(layer);
              }
            }
            trainer.runtime.finish_gradients();
            update_on(trainer, stream, [](BucketId) {});
            wait_for(stream);
            trainer.expect_oracle();
          }) == "");
  }
}

}  // namespace
}  // namespace troupe::test
