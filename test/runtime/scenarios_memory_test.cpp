/// Scenarios about memory limits and about buffers that are written while others read them.
#include "troupe/test/support/d4.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <thread>

namespace troupe::test {
namespace {

constexpr std::int64_t layer_bytes = 4096;  // of 1024 fp32 elements

/// Bytes of one purpose that the device itself has counted.
std::int64_t allocated(World& world, Purpose purpose) {
  return world.device().counters().bytes[static_cast<std::size_t>(purpose)].load();
}

TEST_CASE("S01: a host that runs ahead of the device holds no more buckets than there are slots") {
  constexpr UnitId layers = 64;
  for (const int limit : {1, 2, 3}) {
    CAPTURE(limit);
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            Options options{.slots = limit};
            D4Trainer trainer(world, findings, d4_model(layers), options);
            trainer.stream = &world.host_device().create_host_stream("compute");
            DeviceCounters& counters = world.device().counters();
            {
              Gate device;  // nothing is computed before all is posted
              device.close(*trainer.stream);
              const auto micro_batch = trainer.runtime.micro_batch();
              for (UnitId layer = 0; layer < layers; ++layer) {
                trainer.forward(layer);
              }
              findings.equal(trainer.uses_computed.load(), 0, "layers computed");
              device.open();
            }
            trainer.wait_for_stream();
            findings.equal(trainer.uses_computed.load(), layers, "layers computed");
            findings.equal(counters.unsharded_bytes_peak.load(), limit * layer_bytes, "peak");
            findings.equal(allocated(world, Purpose::parameter_slots), limit * layer_bytes,
                           "slots");
            trainer.runtime.finish_gradients();
            findings.equal(counters.unsharded_bytes.load(), 0, "bytes gathered at the step's end");
            trainer.optimize();
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("S02: the peak is the same number of bytes in every step and in every run") {
  constexpr UnitId layers = 8;
  constexpr int steps = 50;
  std::vector<std::int64_t> first;
  for (std::uint32_t repeat = 0; repeat < 5; ++repeat) {
    std::vector<std::vector<std::int64_t>> peaks(4);
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(layers, 64), d4_options());
            trainer.stream =
                repeat % 2 == 0 ? nullptr : &world.host_device().create_host_stream("compute");
            std::uint32_t random = repeat * 1000 + static_cast<std::uint32_t>(world.rank());
            const auto delay = [&] {
              random = random * 1664525 + 1013904223;
              std::this_thread::sleep_for(std::chrono::microseconds{random >> 27});
            };
            DeviceCounters& counters = world.device().counters();
            const std::int64_t allocations = counters.allocations;
            for (int step = 0; step < steps; ++step) {
              counters.unsharded_bytes_peak = counters.unsharded_bytes.load();
              counters.gradient_bytes_peak = counters.gradient_bytes.load();
              {
                const auto micro_batch = trainer.runtime.micro_batch();
                for (UnitId layer = 0; layer < layers; ++layer) {
                  delay();
                  trainer.forward(layer);
                }
                for (UnitId layer = layers; layer-- > 0;) {
                  delay();
                  trainer.backward(layer);
                }
              }
              trainer.runtime.finish_gradients();
              trainer.optimize();
              if (step > 0) {
                peaks[static_cast<std::size_t>(world.rank())].push_back(
                    counters.unsharded_bytes_peak + counters.gradient_bytes_peak);
              }
            }
            findings.equal(counters.allocations.load(), allocations, "allocations");
            trainer.expect_oracle();
          }) == "");
    REQUIRE(peaks[0].size() == steps - 1);
    const std::vector<std::int64_t> constant(steps - 1, peaks[0][0]);
    CHECK(peaks == std::vector<std::vector<std::int64_t>>(4, constant));
    first = repeat == 0 ? peaks[0] : first;
    CHECK(peaks[0] == first);
    CHECK(peaks[0][0] == 2 * 256 + 256);  // slots are of 256 bytes; one gradient fills at a time
  }
}

TEST_CASE("S03: slots and gradient slots are limited apart, and never wait for each other") {
  struct Limits {
    int slots, gradient_slots;
    std::int64_t buffers;
  };
  for (const Limits& limits : {Limits{2, 2, 4}, Limits{2, 1, 3}, Limits{1, 2, 3}}) {
    for (const bool worker : {false, true}) {
      CAPTURE(limits.slots);
      CAPTURE(limits.gradient_slots);
      CHECK(on_ranks(4, [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, d4_model(),
                                d4_options(limits.slots, limits.gradient_slots));
              trainer.stream =
                  worker ? &world.host_device().create_host_stream("compute") : nullptr;
              DeviceCounters& counters = world.device().counters();
              std::int64_t peak = 0;
              for (int step = 0; step < 3; ++step) {
                {
                  const auto micro_batch = trainer.runtime.micro_batch();
                  for (UnitId layer = 0; layer < 4; ++layer) {
                    trainer.forward(layer);
                  }
                  for (UnitId layer = 4; layer-- > 0;) {
                    const Use use = trainer.runtime.backward(layer, trainer.stream);
                    peak = std::max(peak, counters.unsharded_bytes + counters.gradient_bytes);
                    trainer.read(use, layer);
                    trainer.contribute(use, layer, 1.0F);
                  }
                }
                trainer.runtime.finish_gradients();
                trainer.optimize();
              }
              findings.expect(peak <= limits.buffers * layer_bytes,
                              "peak of " + std::to_string(peak) + " bytes");
              findings.equal(allocated(world, Purpose::parameter_slots) +
                                 allocated(world, Purpose::gradient_slots),
                             limits.buffers * layer_bytes, "bytes allocated for slots");
              trainer.expect_oracle();
            }) == "");
    }
  }
}

TEST_CASE(
    "S04: a backward that finds all gradient slots being reduced waits for the first of them") {
  for (const bool worker : {false, true}) {
    CAPTURE(worker);
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, d4_model(), d4_options(4, 2));
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
                    std::this_thread::sleep_for(std::chrono::milliseconds{20});
                    findings.expect(!served, rank + "a slot that is being reduced was given away");
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
                findings.equal(allocated(world, Purpose::gradient_slots), 2 * layer_bytes, "pool");
                trainer.expect_oracle();
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
    CHECK(launches.buckets(Collective::reduce_scatter) == std::vector<BucketId>{3, 2, 1, 0});
  }
}

TEST_CASE("S06: full sharding holds shards of weights and gradients, and its slots, and no more") {
  constexpr std::int64_t layers = 32;
  CHECK(on_ranks(4, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, d4_model(layers), d4_options());
          trainer.step();
          trainer.step();
          const MemoryReport memory = trainer.runtime.report().memory;
          findings.equal(memory.main_weights, layers * layer_bytes / 4, "weights");
          findings.equal(memory.main_gradients, layers * layer_bytes / 4, "gradients");
          findings.equal(memory.total(), (8 + 8 + 2 + 2) * layer_bytes, "total");
          // What the device has counted: at no time more, but for one layer while it was filled in.
          std::int64_t peak = 0;
          for (const auto& bytes : world.device().counters().bytes_peak) {
            peak += bytes;
          }
          findings.equal(peak, memory.total() + layer_bytes, "peak");
          trainer.expect_oracle();
        }) == "");
}

/// Backwards of all layers on a worker stream, each reduce held up for a while.
void slow_reduces(D4Trainer& trainer, const std::function<void()>& between) {
  HostStream& reduces = stream_of(trainer.world, "reduce");
  const auto micro_batch = trainer.runtime.micro_batch();
  for (UnitId layer = 0; layer < 4; ++layer) {
    trainer.forward(layer);
  }
  for (UnitId layer = 4; layer-- > 0;) {
    const Use use = trainer.runtime.backward(layer, trainer.stream);
    trainer.contribute(use, layer, 1.0F);
    reduces.run([] { std::this_thread::sleep_for(std::chrono::milliseconds{2}); });
    between();
  }
}

TEST_CASE("S07: a gradient slot is not written while a reduce still reads it") {
  for (const bool worker : {false, true}) {
    CAPTURE(worker);
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            Options options = d4_options();
            options.gradient_divisor = 1.0F;
            D4Trainer trainer(world, findings, d4_model(), options);
            trainer.stream = worker ? &world.host_device().create_host_stream("compute") : nullptr;
            for (int step = 0; step < 5; ++step) {
              slow_reduces(trainer, [] {});
              trainer.runtime.finish_gradients();
              trainer.expect_gradients(
                  [](BucketId bucket) { return 10.0F * static_cast<float>(bucket + 1); });
            }
            trainer.wait_for_stream();
          }) == "");
  }
}

TEST_CASE("S10, S11: gradient shards are apart from each other and from what else is allocated") {
  CHECK(on_ranks(4, [&](World& world, Findings& findings) {
          Options options = d4_options();
          options.gradient_divisor = 1.0F;
          D4Trainer trainer(world, findings, d4_model(), options);
          trainer.stream = &world.host_device().create_host_stream("compute");
          struct Block {
            const float* first;
            std::size_t numel;
          };
          std::vector<Block> blocks;
          slow_reduces(trainer, [&] {
            for (int i = 0; i < 50; ++i) {  // 200 in all, of the size of a shard
              const Buffer block =
                  world.device().allocate(256 * sizeof(float), Purpose::temporary).value();
              std::fill_n(block.as<float>(), 256, -1.0F);
              blocks.push_back({block.as<float>(), 256});
            }
          });
          trainer.runtime.finish_gradients();
          trainer.expect_gradients(
              [](BucketId bucket) { return 10.0F * static_cast<float>(bucket + 1); });
          Update update = trainer.runtime.update();
          const std::size_t blocks_count = blocks.size();
          findings.equal(blocks_count, 200U, "blocks");
          for (std::size_t index = 0; index < update.shard_count(); ++index) {
            const ShardView shard = update.shard(index);
            blocks.push_back({shard.gradients.data(), shard.gradients.size()});
            blocks.push_back({shard.weights.data(), shard.weights.size()});
          }
          for (std::size_t a = blocks_count; a < blocks.size(); ++a) {
            for (std::size_t b = 0; b < a; ++b) {
              findings.expect(blocks[a].first + blocks[a].numel <= blocks[b].first ||
                                  blocks[b].first + blocks[b].numel <= blocks[a].first,
                              "two live blocks overlap");
            }
          }
        }) == "");
}

}  // namespace
}  // namespace troupe::test
