/// Main gradients and main weights that are stored in bf16: how updates see them, and all else that
/// reads or writes them.
#include "troupe/test/support/checkpoints.hpp"
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/refusal.hpp"
#include "troupe/test/support/toy_trainer.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

namespace troupe::test {
namespace {

constexpr std::array all_strategies{Strategy::owner_broadcast, Strategy::sharded_optimizer,
                                    Strategy::full_shard};

Options narrow_storage(Strategy strategy) {
  return {
      .strategy = strategy, .main_gradient_dtype = DType::bf16, .main_weight_dtype = DType::bf16};
}

Model two_bf16_layers() {
  return toy_model({{40}, {24, 9}}, DType::bf16);
}

TEST_CASE("shards of bf16 are open one at a time, and stored when finished or put back") {
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    Options options = narrow_storage(strategy);
    options.bucket_bytes = 100;  // a bucket for each unit
    for (const int ranks : {1, 2, 3}) {
      CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
              Runtime runtime(world, two_bf16_layers(), options);
              ToyTrainer trainer{runtime, world.rank()};
              trainer.initialize();
              static_cast<void>(trainer.step(plain_step(2, 1), 0));
              const auto fill = [&](Update& update, std::size_t index, float value) {
                const ShardView shard = update.shard(index);
                for (const ShardPiece& piece : shard.pieces) {
                  std::ranges::fill(
                      shard.weights.subspan(static_cast<std::size_t>(piece.shard_offset),
                                            static_cast<std::size_t>(piece.numel)),
                      value);
                }
              };
              {
                Update update = runtime.update();
                fill(update, 0, 1.0F + std::ldexp(1.0F, -9));  // rounds to 1
                expect_refused(findings, "two at a time",
                               {"shard 1 was asked for while shard 0 is in use", "put it back"},
                               [&] { static_cast<void>(update.shard(1)); });
                const std::span<float> same = update.shard(0).weights;  // as it was written
                findings.expect(same.empty() || same[0] == 1.0F + std::ldexp(1.0F, -9), "lost");
                update.put_back(0);
                fill(update, 1, 3.0F);
                update.finish(1);
                const std::span<float> again = update.shard(0).weights;
                findings.expect(again.empty() || again[0] == 1.0F, "not rounded when put back");
                fill(update, 0, 1.0F + std::ldexp(3.0F, -8));  // a tie: to the even neighbour
              }
              const float even = 1.0F + std::ldexp(1.0F, -6);
              for (const float value : runtime.full_parameter("u0.p0")) {
                findings.equal(value, even, "stored at the end of the update");
              }
              for (const float value : runtime.full_parameter("u1.p1")) {
                findings.equal(value, 3.0F, "stored when finished");
              }
              {
                Update none = runtime.update();  // changes nothing
                static_cast<void>(none.shard(1));
              }
              findings.equal(runtime.full_parameter("u0.p0")[39], even, "kept");
              findings.equal(runtime.full_parameter("u1.p0")[23], 3.0F, "kept");
              const auto micro_batch = runtime.micro_batch();
              const Use use = runtime.forward(0);
              findings.expect(std::ranges::all_of(widened(use["p0"]),
                                                  [&](float value) { return value == even; }),
                              "a use sees the main weights");
            }) == "");
    }
  }
}

TEST_CASE("two optimizers share an update of shards in bf16, on a stream or not") {
  const Model model = two_bf16_layers();
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    for (const int ranks : {1, 2, 4}) {
      std::array<std::vector<std::vector<float>>, 3> results;
      for (std::size_t way = 0; way < results.size(); ++way) {
        CHECK(on_ranks(ranks, [&](World& world, Findings&) {
                Runtime runtime(world, model, narrow_storage(strategy));
                ToyTrainer trainer{runtime, world.rank()};
                HostStream& stream = world.host_device().create_host_stream("update");
                trainer.initialize();
                for (int step = 0; step < 3; ++step) {
                  static_cast<void>(trainer.step(plain_step(2, 2), step));
                  const auto first = [](const Parameter& each) { return each.unit == 0; };
                  const auto second = [](const Parameter& each) { return each.unit != 0; };
                  if (way == 0) {
                    Sgd({.learning_rate = 0.125F}).step(runtime);
                  } else if (way == 1) {
                    Update update = runtime.update();
                    Sgd({.learning_rate = 0.125F,
                         .groups = {{.parameters = first}},
                         .groups_only = true})
                        .step(update);
                    Sgd({.learning_rate = 0.125F,
                         .groups = {{.parameters = second}},
                         .groups_only = true})
                        .step(update);
                  } else {
                    Update update = runtime.update(&stream);
                    for (std::size_t index = 0; index < update.shard_count(); ++index) {
                      stream.run([shard = update.shard(index)] {
                        for (std::size_t i = 0; i < shard.weights.size(); ++i) {
                          shard.weights[i] = shard.weights[i] - 0.125F * shard.gradients[i];
                        }
                      });
                      update.finish(static_cast<BucketId>(index));
                    }
                  }
                }
                for (const Parameter& parameter : model.parameters()) {
                  std::vector<float> full = runtime.full_parameter(parameter.full_name);
                  if (world.rank() == 0) {
                    results[way].push_back(std::move(full));
                  }
                }
              }) == "");
      }
      CHECK(results[1] == results[0]);
      CHECK(results[2] == results[0]);
    }
  }
}

TEST_CASE("main weights in bf16 say nothing without a parameter in bf16") {
  CHECK(on_ranks(1, [&](World& world, Findings& findings) {
          expect_refused(
              findings, "construction",
              {"Options::main_weight_dtype is bf16; expected fp32: no parameter of the model"},
              [&] {
                const Runtime runtime(world, toy_model({{3}}), {.main_weight_dtype = DType::bf16});
              },
              ErrorCode::bad_configuration);
        }) == "");
}

TEST_CASE("norm and clipping are those of main gradients as they are stored") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    Options options = variant.options;
    options.main_gradient_dtype = DType::bf16;
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), options);
            trainer.micro_batch();
            trainer.runtime.finish_gradients();
            trainer.expect_gradients(  // exact in bf16
                [](BucketId bucket) { return 2.5F * static_cast<float>(bucket + 1); });
            findings.equal(trainer.runtime.gradient_norm().norm, std::sqrt(192000.0), "norm");
            const auto divisor = static_cast<float>(std::sqrt(192000.0));
            static_cast<void>(trainer.runtime.clip_gradients(1.0F));
            trainer.expect_gradients([&](BucketId bucket) {
              return through_bf16(2.5F * static_cast<float>(bucket + 1) / divisor);
            });
          }) == "");
  }
}

TEST_CASE("a checkpoint of weights in bf16 has their values, and loads into any other storage") {
  const Model model = two_bf16_layers();
  for (const Strategy strategy : all_strategies) {
    const TestFolder folder;
    std::vector<std::vector<float>> saved;
    for (const int ranks : {3, 1, 2}) {
      for (const bool narrow : {true, false}) {
        CAPTURE(ranks);
        CAPTURE(narrow);
        CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
                Runtime runtime(world, model,
                                narrow ? narrow_storage(strategy) : Options{.strategy = strategy});
                ToyTrainer trainer{runtime, world.rank()};
                trainer.initialize();
                const bool first = ranks == 3 && narrow;
                if (first) {
                  static_cast<void>(trainer.step(plain_step(2, 2), 0));
                  AdamW({.learning_rate = 0.01F}).step(runtime);
                  save(runtime, folder.path());
                } else {
                  static_cast<void>(load(runtime, folder.path()));
                }
                for (const Parameter& parameter : model.parameters()) {
                  std::vector<float> full = runtime.full_parameter(parameter.full_name);
                  if (world.rank() == 0 && first) {
                    saved.push_back(std::move(full));
                  } else if (world.rank() == 0) {
                    findings.expect(full == saved[parameter.id], parameter.full_name);
                  }
                }
              }) == "");
      }
    }
    CHECK(saved.size() == model.parameters().size());
  }
}

TEST_CASE("planning anew moves weights in bf16 as they are") {
  for (const Strategy strategy : all_strategies) {
    for (const int ranks : {1, 2, 3}) {
      CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
              Runtime runtime(world, two_bf16_layers(), narrow_storage(strategy));
              ToyTrainer trainer{runtime, world.rank()};
              trainer.initialize();
              static_cast<void>(trainer.step(plain_step(2, 1), 0));
              Sgd({.learning_rate = 0.125F}).step(runtime);
              std::vector<std::vector<float>> before;
              for (const Parameter& parameter : runtime.model().parameters()) {
                before.push_back(runtime.full_parameter(parameter.full_name));
              }
              for (const bool trainable : {false, true}) {
                runtime.set_trainable({"u1.p0"}, trainable);
                for (const Parameter& parameter : runtime.model().parameters()) {
                  findings.expect(
                      runtime.full_parameter(parameter.full_name) == before[parameter.id],
                      parameter.full_name + " is another");
                }
              }
            }) == "");
    }
  }
}

}  // namespace
}  // namespace troupe::test
