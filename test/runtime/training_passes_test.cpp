/// What a training loop does between steps: evaluation, inference, exports, updates by hand. They
/// see the newest values and leave memory as it was.
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <array>

namespace troupe::test {
namespace {

struct Case {
  D4Variant variant;
  int ranks;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const D4Variant& variant : d4_variants()) {
    all.push_back({variant, 4});
  }
  for (const int ranks : {1, 2, 3, 7}) {
    for (const Strategy strategy :
         {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
      Options options;
      options.strategy = strategy;
      all.push_back({{row_of(strategy).name, options}, ranks});
    }
  }
  return all;
}

/// Bytes that the device has given out now, by purpose, and how many slot bytes hold something.
std::array<std::int64_t, purpose_count + 2> held(World& world) {
  std::array<std::int64_t, purpose_count + 2> bytes{};
  const DeviceCounters& counters = world.device().counters();
  for (std::size_t purpose = 0; purpose < purpose_count; ++purpose) {
    bytes[purpose] = counters.bytes[purpose].load();
  }
  bytes[purpose_count] = counters.unsharded_bytes.load();
  bytes[purpose_count + 1] = counters.gradient_bytes.load();
  return bytes;
}

void evaluate(D4Trainer& trainer) {
  const auto eval = trainer.runtime.eval();
  for (const UnitId unit : {0U, 1U, 1U, 2U}) {
    trainer.forward(unit);
  }
}

/// Every weight by hand, as a moving average or a load does it.
void add_to_all(D4Trainer& trainer, float summand) {
  {
    Update update = trainer.runtime.update();
    for (BucketId bucket = 0; bucket < update.shard_count(); ++bucket) {
      const ShardView shard = update.shard(bucket);
      for (const ShardPiece& piece : shard.pieces) {
        for (float& weight : shard.weights.subspan(static_cast<std::size_t>(piece.shard_offset),
                                                   static_cast<std::size_t>(piece.numel))) {
          weight += summand;
        }
      }
    }
  }
  for (const Parameter& parameter : trainer.runtime.model().parameters()) {
    std::vector<float> weights = trainer.oracle.weights(parameter.id);
    for (float& weight : weights) {
      weight += summand;
    }
    trainer.oracle.set(parameter.id, weights);
  }
}

TEST_CASE("evals, inference, exports and updates between steps see the newest values") {
  for (const Case& each : cases()) {
    CAPTURE(std::string(each.variant.name));
    CAPTURE(each.variant.options.overlap);
    CAPTURE(each.ranks);
    LaunchLog launches(each.ranks);
    CHECK(on_ranks(
              each.ranks,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, d4_model(4, 100), each.variant.options);
                evaluate(trainer);  // inference, before any step
                trainer.expect_oracle();
                trainer.step();
                trainer.step();
                const auto baseline = held(world);
                for (int round = 0; round < 2; ++round) {
                  evaluate(trainer);
                  trainer.expect_oracle();  // exports
                  trainer.step();
                  trainer.expect_oracle();  // right behind the update
                  add_to_all(trainer, 1.0F);
                  evaluate(trainer);
                  {
                    const auto micro_batch = trainer.runtime.micro_batch();
                    trainer.forward(0);
                    trainer.expect_oracle();  // in mid-training
                    evaluate(trainer);
                    for (const UnitId unit : {1U, 2U, 3U}) {
                      trainer.forward(unit);
                    }
                    for (UnitId unit = 4; unit-- > 0;) {
                      trainer.backward(unit);
                    }
                  }
                  trainer.runtime.finish_gradients();
                  trainer.optimize();
                  trainer.expect_oracle();
                  findings.expect(held(world) == baseline, "memory is not back where it was");
                }
              },
              &launches) == "");
    if (!is_agreed(each.variant.options)) {
      CHECK(launches.same_on_all_ranks());
    }
  }
}

TEST_CASE("S40: a copy derived from gathered weights is current if it follows the version") {
  for (const Case& each : cases()) {
    CAPTURE(std::string(each.variant.name));
    CAPTURE(each.variant.options.overlap);
    CAPTURE(each.ranks);
    CHECK(on_ranks(each.ranks, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(4, 100), each.variant.options);
            Runtime& runtime = trainer.runtime;
            struct Derived {
              std::uint64_t version = 0;
              std::vector<float> reversed;
              int refreshed = 0;
            };
            std::array<Derived, 4> derived;
            const auto use_derived = [&](const Use& use, UnitId unit) {
              Derived& copy = derived[unit];
              const BucketId bucket = runtime.bucket_plan().unit_buckets[unit][0];
              if (copy.version != runtime.version(bucket)) {
                const auto weights = use["w"].as<float>();
                copy = {runtime.version(bucket),
                        {weights.rbegin(), weights.rend()},
                        copy.refreshed + 1};
              }
              findings.expect(std::equal(copy.reversed.rbegin(), copy.reversed.rend(),
                                         trainer.oracle.weights(unit).begin(),
                                         trainer.oracle.weights(unit).end()),
                              "the copy of unit " + std::to_string(unit) + " is an old one");
            };
            for (int step = 0; step < 3; ++step) {
              {
                const auto micro_batch = runtime.micro_batch();
                for (UnitId unit = 0; unit < 4; ++unit) {
                  use_derived(runtime.forward(unit), unit);
                }
                for (UnitId unit = 4; unit-- > 0;) {
                  const Use use = runtime.backward(unit);
                  use_derived(use, unit);
                  trainer.contribute(use, unit, 1.0F);
                }
              }
              runtime.finish_gradients();
              trainer.optimize();
              const auto eval = runtime.eval();
              for (UnitId unit = 0; unit < 4; ++unit) {
                use_derived(runtime.forward(unit), unit);
              }
            }
            for (const Derived& copy : derived) {  // once after each update, however often gathered
              findings.equal(copy.refreshed, 4, "refreshes");
            }
          }) == "");
  }
}

TEST_CASE("initialising and exporting hold the shards and no more than one bucket besides") {
  for (const Case& each : cases()) {
    CAPTURE(std::string(each.variant.name));
    CAPTURE(each.ranks);
    CHECK(on_ranks(each.ranks, [&](World& world, Findings& findings) {
            constexpr std::int64_t numel = 1000;
            D4Trainer trainer(world, findings, d4_model(4, numel), each.variant.options);
            const DeviceCounters& counters = world.device().counters();
            const auto temporary = static_cast<std::size_t>(Purpose::temporary);
            constexpr std::int64_t fp32 = sizeof(float);
            findings.equal(counters.bytes_peak[temporary].load(), numel * fp32,
                           "most bytes besides, initialising");
            trainer.expect_oracle();
            std::int64_t largest = 0;
            std::int64_t shards = 0;
            for (const Bucket& bucket : trainer.runtime.bucket_plan().buckets) {
              const BucketLayout& layout = trainer.runtime.layout(bucket.id);
              largest = std::max(largest, layout.numel_padded());
              shards += layout.even() ? layout.shard_numel() : layout.shard(world.rank()).numel;
            }
            findings.equal(counters.bytes_peak[temporary].load(), largest * fp32,
                           "most bytes besides, exporting");
            const MemoryReport memory = trainer.runtime.report().memory;
            findings.equal(memory.main_gradients, shards * fp32, "bytes of shards");
            std::int64_t now = 0;
            for (const auto& bytes : counters.bytes) {
              now += bytes.load();
            }
            findings.equal(now, memory.total(), "bytes that are left");
          }) == "");
  }
}

}  // namespace
}  // namespace troupe::test
