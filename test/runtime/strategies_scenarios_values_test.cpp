/// Scenarios about parameters and losses, under every strategy: overlap, empty shards, padding.
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>

namespace troupe::test {
namespace {

TEST_CASE("S19: losses and parameters are the same with and without overlap, and the loss falls") {
  constexpr int steps = 200;
  constexpr std::int64_t numel = 256;
  std::vector<double> first;  // of the first variant: all have the same sums
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    std::vector<double> losses;
    std::vector<float> last;
    CHECK(on_ranks(4, [&](World& world, Findings&) {
            Runtime runtime(world, d4_model(4, numel), variant.options);
            runtime.initialize([](ParameterView view) {
              const auto layer = static_cast<float>(view.name[1] - '0');
              for (std::size_t j = 0; j < view.data.size(); ++j) {
                view.data[j] = layer + static_cast<float>(j) / 1024.0F;
              }
            });
            for (int step = 0; step < steps; ++step) {
              double loss = 0.0;
              {
                const auto micro_batch = runtime.micro_batch();
                for (UnitId layer = 0; layer < 4; ++layer) {
                  const Use use = runtime.forward(layer);
                  for (const float p : use["w"].as<float>()) {
                    loss += 0.5 * static_cast<double>(p) * static_cast<double>(p);
                  }
                }
                for (UnitId layer = 4; layer-- > 0;) {
                  const Use use = runtime.backward(layer);
                  std::ranges::copy(use["w"].as<float>(),
                                    use.gradient("w").as<float>().begin());  // p - t, t = 0
                }
              }
              runtime.finish_gradients();
              Sgd({.learning_rate = d4_learning_rate}).step(runtime);
              if (world.rank() == 0) {
                losses.push_back(loss);
              }
            }
            const std::vector<float> full = runtime.full_parameter("L3.w");
            if (world.rank() == 0) {
              last = full;
            }
          }) == "");
    REQUIRE(losses.size() == steps);
    CHECK(std::ranges::adjacent_find(losses, std::ranges::less_equal()) == losses.end());
    CHECK(losses.back() < 1e-12 * losses.front());
    first = first.empty() ? losses : first;
    CHECK(losses == first);
    // One process, the same loop.
    std::vector<float> right(numel);
    for (std::size_t j = 0; j < right.size(); ++j) {
      right[j] = 3.0F + static_cast<float>(j) / 1024.0F;
      for (int step = 0; step < steps; ++step) {
        right[j] =
            right[j] - d4_learning_rate * ((right[j] + right[j] + right[j] + right[j]) / 4.0F);
      }
    }
    CHECK(last == right);
  }
}

TEST_CASE("S33: ranks whose shards are empty take part like all others") {
  const std::array<std::int64_t, 4> sizes{2, 1, 0, 5};
  using Pieces = std::array<std::array<std::int64_t, 4>, 4>;
  const Pieces even{{{1, 1, 0, 0}, {1, 0, 0, 0}, {0, 0, 0, 0}, {2, 2, 1, 0}}};
  const Pieces halves{{{1, 1, 1, 1}, {1, 0, 1, 0}, {0, 0, 0, 0}, {3, 2, 3, 2}}};
  // Dealt by size: the largest to rank 0, what is empty to the last.
  const Pieces owned{{{0, 2, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 0}, {5, 0, 0, 0}}};
  Model model;
  for (std::size_t layer = 0; layer < 4; ++layer) {
    model.add_parameter(model.add_unit("L" + std::to_string(layer)),
                        {.name = "w", .shape = {sizes[layer]}});
  }
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    Options options = variant.options;
    options.alignment_numel = 1;
    options.bucket_bytes = options.strategy == Strategy::sharded_optimizer ? 1 : 0;
    const Pieces& pieces = options.strategy == Strategy::owner_broadcast ? owned
                           : options.mesh.replicate > 1                  ? halves
                                                                         : even;
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, model, options);
                {
                  Update update = trainer.runtime.update();
                  for (BucketId bucket = 0; bucket < 4; ++bucket) {
                    std::int64_t numel = 0;
                    for (const ShardPiece& piece : update.shard(bucket).pieces) {
                      numel += piece.numel;
                    }
                    findings.equal(numel, pieces[bucket][static_cast<std::size_t>(world.rank())],
                                   "elements of bucket " + std::to_string(bucket) + " on rank " +
                                       std::to_string(world.rank()));
                  }
                }
                for (int step = 0; step < 3; ++step) {
                  trainer.step();
                }
                trainer.expect_oracle();
                // What was exported trains on in another runtime.
                D4Trainer second(world, findings, model, options);
                for (const Parameter& parameter : model.parameters()) {
                  second.oracle.set(parameter.id,
                                    trainer.runtime.full_parameter(parameter.full_name));
                }
                second.runtime.initialize([&](ParameterView view) {
                  std::ranges::copy(second.oracle.weights(model.parameter(view.name)),
                                    view.data.begin());
                });
                second.step();
                second.expect_oracle();
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
    CHECK(launches.buckets(reduces_by(options)).size() == 4 * 4);
  }
}

/// Writes NaN into what lies between and behind the parameters of a bucket, but not into `spared`.
void poison(const BucketLayout& layout, std::size_t index, const void* parameter, Range spared) {
  auto* full =
      const_cast<float*>(static_cast<const float*>(parameter)) - layout.parameters()[index].offset;
  for (const Range& gap : layout.gaps()) {
    for (std::int64_t i = gap.offset; i < gap.offset + gap.numel; ++i) {
      if (i < spared.offset || i >= spared.offset + spared.numel) {
        full[i] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
}

TEST_CASE("S34: what lies in the padding never reaches a result") {
  const std::array<std::int64_t, 4> sizes{1000, 1001, 1003, 7};
  Model model;
  for (std::size_t layer = 0; layer < 4; ++layer) {
    const UnitId unit = model.add_unit("L" + std::to_string(layer));
    model.add_parameter(unit, {.name = "a", .shape = {sizes[layer] / 3}});
    model.add_parameter(unit, {.name = "b", .shape = {sizes[layer] - sizes[layer] / 3}});
  }
  for (const D4Variant& variant : d4_variants()) {
    for (const int ranks : {3, 4, 7}) {
      if (ranks != 4 &&
          (variant.options.mesh.replicate > 1 || variant.options.regather_group_size)) {
        continue;
      }
      for (const std::int64_t bucket_bytes : {0, 9000}) {  // 9000: fused wherever that is possible
        CAPTURE(std::string(variant.name));
        CAPTURE(variant.options.overlap);
        CAPTURE(ranks);
        CAPTURE(bucket_bytes);
        Options options = variant.options;
        options.bucket_bytes = bucket_bytes;
        options.gradient_slots.reset();
        CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, model, options);
                Runtime& runtime = trainer.runtime;
                const auto poison_all = [&](const Use& use, UnitId unit, bool gradients) {
                  for (const UnitParameter& each : model.units()[unit].parameters) {
                    const Bucket& bucket =
                        runtime.bucket_plan()
                            .buckets[runtime.bucket_plan().bucket_of[each.parameter]];
                    const auto index = static_cast<std::size_t>(
                        std::ranges::find(bucket.parameters, each.parameter) -
                        bucket.parameters.begin());
                    const BucketLayout& layout = runtime.layout(bucket.id);
                    if (gradients) {
                      poison(layout, index, use.gradient(each.name).data, {});
                    } else {
                      // Where full buffers stay, this rank's part of it are its main weights.
                      const int member = world.rank() % layout.group_size();
                      poison(layout, index, use[each.name].data,
                             is_agreed(options) ? layout.shard(member) : Range{});
                    }
                  }
                };
                for (int step = 0; step < 3; ++step) {
                  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
                    const auto scope = runtime.micro_batch();
                    for (UnitId layer = 0; layer < 4; ++layer) {
                      const Use use = runtime.forward(layer);
                      poison_all(use, layer, false);
                      trainer.read(use, layer);
                    }
                    for (UnitId layer = 4; layer-- > 0;) {
                      const Use use = runtime.backward(layer);
                      trainer.contribute(use, layer, 1.0F);
                      poison_all(use, layer, false);
                      poison_all(use, layer, true);
                    }
                  }
                  runtime.finish_gradients();
                  findings.expect(runtime.clip_gradients(1e9F).finite, "a NaN is in the norm");
                  double squares = 0.0;
                  bool non_finite = false;
                  {
                    Update update = runtime.update();
                    for (std::size_t index = 0; index < update.shard_count(); ++index) {
                      const ShardView shard = update.shard(index);
                      for (const auto part :
                           {shard.gradients, std::span<const float>(shard.weights)}) {
                        world.device().squared_norm(Stream::caller(), DType::f32, part.data(),
                                                    static_cast<std::int64_t>(part.size()),
                                                    &squares, &non_finite);
                      }
                    }
                  }
                  findings.expect(!non_finite, "a NaN has reached a shard");
                  trainer.optimize();
                }
                trainer.expect_oracle();
              }) == "");
      }
    }
  }
}

}  // namespace
}  // namespace troupe::test
