/// The scenarios about checkpoints: resuming, other world sizes, padding, loading over what was
/// gathered.
#include "troupe/runtime/checkpoint/safetensors.hpp"
#include "troupe/test/support/checkpoints.hpp"
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace troupe::test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Units of one parameter each.
Model flat_model(const std::vector<std::int64_t>& numels) {
  Model model;
  for (std::size_t i = 0; i < numels.size(); ++i) {
    model.add_parameter(model.add_unit("u" + std::to_string(i)),
                        {.name = "w", .shape = {numels[i]}});
  }
  return model;
}

std::vector<Options> strategies_with_alignment(std::int64_t alignment) {
  std::vector<Options> all;
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::sharded_optimizer, Strategy::owner_broadcast}) {
    all.push_back({.strategy = strategy, .alignment_numel = alignment});
  }
  return all;
}

/// What a file holds besides its header, by tensor.
std::map<std::string, std::vector<float>> tensors_of(const std::filesystem::path& file) {
  const std::string bytes = bytes_of(file);
  const auto size = static_cast<std::int64_t>(bytes.size());
  const auto length = value_or_throw(safetensors_header_bytes(bytes, size));
  const auto stored = value_or_throw(parse_safetensors_header(
      std::string_view(bytes).substr(8, static_cast<std::size_t>(length)), size));
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& [name, tensor] : stored.tensors) {
    if (tensor.type == TensorType::f32) {
      std::vector<float>& values = tensors[name];
      values.resize(static_cast<std::size_t>(tensor.numel));
      std::memcpy(values.data(), bytes.data() + tensor.offset, values.size() * sizeof(float));
    }
  }
  return tensors;
}

/// Elements of all tensors of a kind ("weights/", "states/") in all files of a checkpoint.
std::size_t payload(const std::filesystem::path& checkpoint, const std::string& kind) {
  std::size_t numel = 0;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors") {
      for (const auto& [name, values] : tensors_of(entry.path())) {
        numel += name.starts_with(kind) ? values.size() : 0;
      }
    }
  }
  return numel;
}

/// Steps 0 to 2, a checkpoint, step 3; then again from the checkpoint.
void resume_and_compare(const Model& model, int ranks, const Options& options) {
  TestFolder folder;
  WholeState saved;
  WholeState uninterrupted;
  CHECK(with_runtime(ranks, model, options, [&](Runtime& runtime, World& world, Findings&) {
          ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
          AdamW adamw;
          for (int step = 0; step < 3; ++step) {
            toy_step(runtime, world.rank(), step, adamw);
          }
          save(runtime, folder.path());
          saved.add(runtime);
          toy_step(runtime, world.rank(), 3, adamw);
          uninterrupted.add(runtime);
        }) == "");
  WholeState loaded;
  WholeState resumed;
  CHECK(with_runtime(ranks, model, options, [&](Runtime& runtime, World& world, Findings&) {
          load(runtime, folder.path());
          loaded.add(runtime);
          AdamW adamw;
          toy_step(runtime, world.rank(), 3, adamw);
          resumed.add(runtime);
        }) == "");
  CHECK(saved.difference(loaded) == "");
  CHECK(uninterrupted.difference(resumed) == "");
}

TEST_CASE("S33: ranks whose shards are empty save and load as the others do") {
  const Model model = flat_model({2, 1, 0, 5});
  CHECK(with_runtime(
            4, model, {.alignment_numel = 1},
            [&](Runtime& runtime, World& world, Findings& findings) {
              std::string numels;
              for (const Bucket& bucket : runtime.bucket_plan().buckets) {
                std::int64_t numel = 0;
                for (const ShardPiece& piece : runtime.layout(bucket.id).pieces(world.rank())) {
                  numel += piece.numel;
                }
                numels += std::to_string(numel) + " ";
              }
              const std::vector<std::string> right{"1 1 0 2 ", "1 0 0 2 ", "0 0 0 1 ", "0 0 0 0 "};
              findings.expect(numels == right[static_cast<std::size_t>(world.rank())],
                              "shards of " + numels);
            }) == "");
  for (const Options& options : strategies_with_alignment(1)) {
    CAPTURE(row_of(options.strategy).name);
    resume_and_compare(model, 4, options);
  }
}

TEST_CASE("S34: padding is in no file, whatever it holds") {
  for (const int ranks : {3, 4, 7}) {
    for (const Options& options : strategies_with_alignment(1)) {
      for (const std::int64_t alignment : {1, 16}) {
        CAPTURE(ranks);
        CAPTURE(row_of(options.strategy).name);
        CAPTURE(alignment);
        Options own = options;
        own.alignment_numel = alignment;
        TestFolder folder;
        std::atomic<int> poisoned{0};
        CHECK(with_runtime(ranks, flat_model({1000, 1001, 1003, 7}), own,
                           [&](Runtime& runtime, World& world, Findings&) {
                             ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
                             AdamW adamw;
                             for (int step = 0; step < 3; ++step) {
                               toy_step(runtime, world.rank(), step, adamw);
                             }
                             for (const Bucket& bucket : runtime.bucket_plan().buckets) {
                               const ShardView shard = runtime.impl().shard(bucket.id);
                               const auto poison = [&](std::span<float> values) {
                                 std::vector<float> kept(values.begin(), values.end());
                                 std::ranges::fill(values, nan);
                                 std::size_t own_numel = 0;
                                 for (const ShardPiece& piece : shard.pieces) {
                                   own_numel += static_cast<std::size_t>(piece.numel);
                                   std::copy_n(kept.begin() + piece.shard_offset, piece.numel,
                                               values.begin() + piece.shard_offset);
                                 }
                                 poisoned += static_cast<int>(values.size() - own_numel);
                               };
                               poison(shard.weights);
                               poison(runtime.state("adamw.m", bucket.id));
                               poison(runtime.state("adamw.v", bucket.id));
                             }
                             save(runtime, folder.path());
                           }) == "");
        if (own.strategy == Strategy::full_shard && alignment == 1) {
          // The pads of the scenario, in weights and two states.
          CHECK(poisoned == 3 * (ranks == 3   ? 2 + 1 + 2 + 2
                                 : ranks == 4 ? 0 + 3 + 1 + 1
                                              : 1 + 0 + 5 + 0));
        }
        const auto checkpoint = folder.path() / "step-000000003";
        CHECK(payload(checkpoint, "weights/") == 3011);
        CHECK(payload(checkpoint, "states/") == 2 * 3011);
        for (int rank = 0; rank < ranks; ++rank) {
          std::array<char, 32> name{};
          std::snprintf(name.data(), name.size(), "rank-%05d.safetensors", rank);
          for (const auto& [tensor, values] : tensors_of(checkpoint / name.data())) {
            CHECK(std::ranges::none_of(values, [](float each) { return std::isnan(each); }));
          }
        }
      }
    }
  }
}

TEST_CASE("S35: ranks with different numbers of pieces get back what they had") {
  Model model;
  const UnitId unit = model.add_unit("u");
  model.add_parameter(unit, {.name = "large", .shape = {1'000'000}});
  for (int i = 0; i < 200; ++i) {
    model.add_parameter(unit, {.name = "small" + std::to_string(i), .shape = {10}});
  }
  TestFolder folder;
  WholeState uninterrupted;
  WholeState saved;
  std::array<std::size_t, 4> pieces{};
  CHECK(with_runtime(4, model, {}, [&](Runtime& runtime, World& world, Findings&) {
          ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
          AdamW adamw;
          for (int step = 0; step < 2; ++step) {
            toy_step(runtime, world.rank(), step, adamw);
          }
          save(runtime, folder.path());
          saved.add(runtime);
          pieces[static_cast<std::size_t>(world.rank())] =
              runtime.layout(0).pieces(world.rank()).size();
          for (int step = 2; step < 4; ++step) {
            toy_step(runtime, world.rank(), step, adamw);
          }
          uninterrupted.add(runtime);
        }) == "");
  CHECK(pieces == std::array<std::size_t, 4>{1, 1, 1, 201});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const auto file =
        folder.path() / "step-000000002" / ("rank-0000" + std::to_string(rank) + ".safetensors");
    CHECK(tensors_of(file).size() == 3 * pieces[rank]);
  }
  WholeState loaded;
  WholeState resumed;
  CHECK(with_runtime(4, model, {}, [&](Runtime& runtime, World& world, Findings&) {
          load(runtime, folder.path());
          loaded.add(runtime);
          AdamW adamw;
          for (int step = 2; step < 4; ++step) {
            toy_step(runtime, world.rank(), step, adamw);
          }
          resumed.add(runtime);
        }) == "");
  CHECK(saved.difference(loaded) == "");
  CHECK(uninterrupted.difference(resumed) == "");
}

TEST_CASE("S41: what is loaded over gathered buffers is what the next forward reads") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    TestFolder folder;
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer saver(world, findings, d4_model(), variant.options);
            saver.runtime.initialize([&](ParameterView view) {
              const auto weights = saver.oracle.weights(saver.runtime.model().parameter(view.name));
              std::ranges::transform(weights, view.data.begin(),
                                     [](float each) { return each + 1000.0F; });
            });
            save(saver.runtime, folder.path());
          }) == "");
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), variant.options);
            const auto forward = [&] {
              const auto eval = trainer.runtime.eval();
              for (UnitId layer = 0; layer < 4; ++layer) {
                trainer.forward(layer);  // compares every element
              }
            };
            forward();
            findings.expect(world.device().counters().unsharded_bytes > 0,
                            "nothing is gathered when the weights are loaded");
            load(trainer.runtime, folder.path());
            for (ParameterId id = 0; id < 4; ++id) {
              std::vector<float> loaded = trainer.oracle.weights(id);
              for (float& p : loaded) {
                p = p + 1000.0F;
              }
              trainer.oracle.set(id, loaded);
            }
            forward();
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE(
    "S45: four ranks save, any number loads, and nothing but the parameters is in the files") {
  const Model model = flat_model({1003});
  const Options options{.alignment_numel = 1};
  // Gradients that do not depend on the ranks: the next step is the same bits in every world.
  const auto step = [](Runtime& runtime, int index) {
    const auto scope = runtime.micro_batch();
    {
      const Use use = runtime.forward(0);
    }
    const Use use = runtime.backward(0);
    const auto gradient = use.gradient("w").as<float>();
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(index)) % 5) - 2.0F;
    }
  };
  TestFolder folder;
  WholeState saved;
  WholeState uninterrupted;
  CHECK(with_runtime(4, model, options, [&](Runtime& runtime, World& world, Findings& findings) {
          ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
          AdamW own;
          for (int index = 0; index < 4; ++index) {
            if (index == 3) {
              save(runtime, folder.path());
              saved.add(runtime);
            }
            step(runtime, index);
            runtime.finish_gradients();
            own.step(runtime);
          }
          findings.equal(runtime.layout(0).shard_numel(), 251, "shard");
          uninterrupted.add(runtime);
        }) == "");
  const auto checkpoint = folder.path() / "step-000000003";
  CHECK(payload(checkpoint, "") * sizeof(float) == 12036);
  const std::map<int, std::int64_t> shards{{1, 1003}, {2, 502}, {3, 335}, {6, 168}, {8, 126}};
  for (const auto& [ranks, shard_numel] : shards) {
    CAPTURE(ranks);
    WholeState loaded;
    WholeState later;
    CHECK(with_runtime(ranks, model, options, [&](Runtime& runtime, World&, Findings& findings) {
            load(runtime, folder.path());
            findings.equal(runtime.layout(0).shard_numel(), shard_numel, "shard");
            loaded.add(runtime);
            step(runtime, 3);
            runtime.finish_gradients();
            AdamW own;
            own.step(runtime);
            later.add(runtime);
          }) == "");
    CHECK(saved.difference(loaded) == "");
    CHECK(uninterrupted.difference(later) == "");
  }
}

}  // namespace
}  // namespace troupe::test
