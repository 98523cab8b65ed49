/// Scenarios about parameters: overlap, frozen ones, empty shards, padding.
#include "troupe/test/support/d4.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

namespace troupe::test {
namespace {

TEST_CASE("S19: losses and parameters are the same with and without overlap, and the loss falls") {
  constexpr int steps = 200;
  std::array<std::vector<double>, 2> losses;
  std::array<std::vector<std::vector<float>>, 2> parameters;
  for (const int depth : {0, 1}) {
    const auto run = static_cast<std::size_t>(depth);
    CHECK(on_ranks(4, [&](World& world, Findings&) {
            Runtime runtime(world, d4_model(), d4_options(2, 2, depth));
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
                losses[run].push_back(loss);
              }
            }
            for (UnitId layer = 0; layer < 4; ++layer) {
              const auto full = runtime.full_parameter("L" + std::to_string(layer) + ".w");
              if (world.rank() == 0) {
                parameters[run].push_back(full);
              }
            }
          }) == "");
  }
  REQUIRE(losses[0].size() == steps);
  CHECK(losses[0] == losses[1]);
  CHECK(parameters[0] == parameters[1]);
  CHECK(std::ranges::is_sorted(losses[0], std::greater_equal<>()));
  CHECK(losses[0].back() < 1e-12 * losses[0].front());
  REQUIRE(parameters[0].size() == 4);
  // One process, the same loop.
  std::vector<float> right(1024);
  for (std::size_t j = 0; j < right.size(); ++j) {
    right[j] = 3.0F + static_cast<float>(j) / 1024.0F;
    for (int step = 0; step < steps; ++step) {
      right[j] = right[j] - d4_learning_rate * ((right[j] + right[j] + right[j] + right[j]) / 4.0F);
    }
  }
  CHECK(parameters[0][3] == right);
}

TEST_CASE("S23: a frozen parameter between trainable ones stays as it is, bit for bit") {
  Model model;
  const UnitId unit = model.add_unit("L0");
  model.add_parameter(unit, {.name = "a", .shape = {341}});
  model.add_parameter(unit, {.name = "b", .shape = {341}, .trainable = false});
  model.add_parameter(unit, {.name = "c", .shape = {342}});
  for (const bool decays : {false, true}) {  // AdamW moves what has no gradient, too
    CAPTURE(decays);
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, model, d4_options());
            AdamW adamw({.weight_decay = 0.5F});
            std::array<std::vector<float>, 3> before;
            const std::array<const char*, 3> names{"L0.a", "L0.b", "L0.c"};
            for (int step = 0; step < 8; ++step) {
              for (std::size_t i = 0; i < names.size(); ++i) {
                before[i] = trainer.runtime.full_parameter(names[i]);
              }
              if (decays) {
                {
                  const auto micro_batch = trainer.runtime.micro_batch();
                  static_cast<void>(trainer.runtime.forward(unit));
                  trainer.contribute(trainer.runtime.backward(unit), unit, 1.0F);
                }
                trainer.runtime.finish_gradients();
                adamw.step(trainer.runtime);
              } else {
                trainer.step();
                trainer.expect_oracle();
              }
              for (std::size_t i = 0; i < names.size(); ++i) {
                const bool moved = trainer.runtime.full_parameter(names[i]) != before[i];
                findings.expect(moved == (i != 1),
                                std::string(names[i]) + (moved ? " has moved" : " has not moved"));
              }
            }
          }) == "");
  }
}

/// Writes NaN into what lies between and behind the parameters of a bucket, in a gathered or a
/// gradient slot.
void poison(const Runtime& runtime, BucketId bucket, std::size_t index, const void* parameter) {
  const BucketLayout& layout = runtime.layout(bucket);
  auto* full =
      const_cast<float*>(static_cast<const float*>(parameter)) - layout.parameters()[index].offset;
  for (const Range& gap : layout.gaps()) {
    std::fill_n(full + gap.offset, gap.numel, std::numeric_limits<float>::quiet_NaN());
  }
}

TEST_CASE("S34: what lies in the padding never reaches a result") {
  const std::array<std::int64_t, 4> sizes{1000, 1001, 1003, 7};
  struct Row {
    int ranks;
    std::array<std::int64_t, 4> shards;
  };
  for (const Row& given :
       {Row{3, {334, 334, 335, 3}}, Row{4, {250, 251, 251, 2}}, Row{7, {143, 143, 144, 1}}}) {
    for (const bool aligned : {false, true}) {
      CAPTURE(given.ranks);
      CAPTURE(aligned);
      Model model;
      for (std::size_t layer = 0; layer < 4; ++layer) {
        const UnitId unit = model.add_unit("L" + std::to_string(layer));
        if (aligned) {  // gaps between parameters, too
          model.add_parameter(unit, {.name = "a", .shape = {sizes[layer] / 3}});
          model.add_parameter(unit, {.name = "b", .shape = {sizes[layer] - sizes[layer] / 3}});
        } else {
          model.add_parameter(unit, {.name = "w", .shape = {sizes[layer]}});
        }
      }
      Options options{.alignment_numel = aligned ? 16 : 1};
      CHECK(on_ranks(given.ranks, [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, model, options);
              const auto poison_all = [&](const Use& use, UnitId unit, bool backward) {
                std::size_t index = 0;
                for (const UnitParameter& each : model.units()[unit].parameters) {
                  const void* data = backward ? use.gradient(each.name).data : use[each.name].data;
                  poison(trainer.runtime, unit, index++, data);
                }
              };
              for (UnitId layer = 0; layer < 4; ++layer) {
                const std::int64_t shard = trainer.runtime.layout(layer).shard_numel();
                findings.expect(aligned ? shard >= given.shards[layer] && shard % 16 == 0
                                        : shard == given.shards[layer],
                                "shard of " + std::to_string(shard));
              }
              for (int step = 0; step < 3; ++step) {
                for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
                  const auto scope = trainer.runtime.micro_batch();
                  for (UnitId layer = 0; layer < 4; ++layer) {
                    const Use use = trainer.runtime.forward(layer);
                    poison_all(use, layer, false);
                    trainer.read(use, layer);
                  }
                  for (UnitId layer = 4; layer-- > 0;) {
                    const Use use = trainer.runtime.backward(layer);
                    trainer.contribute(use, layer, 1.0F);
                    poison_all(use, layer, false);
                    poison_all(use, layer, true);
                  }
                }
                trainer.runtime.finish_gradients();
                double squares = 0.0;
                bool non_finite = false;
                {
                  Update update = trainer.runtime.update();
                  for (std::size_t index = 0; index < update.shard_count(); ++index) {
                    const ShardView shard = update.shard(index);
                    for (const auto part :
                         {shard.gradients, std::span<const float>(shard.weights)}) {
                      world.device().squared_norm(Stream::caller(), DType::f32, part.data(),
                                                  static_cast<std::int64_t>(part.size()), &squares,
                                                  &non_finite);
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

}  // namespace
}  // namespace troupe::test
