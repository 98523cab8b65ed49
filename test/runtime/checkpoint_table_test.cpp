/// A checkpoint of any world, loaded by any other: every pair of strategies, world sizes, meshes,
/// bucket sizes and alignments below.
#include "troupe/test/support/checkpoints.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <memory>

namespace troupe::test {
namespace {

struct Setting {
  int ranks = 1;
  Options options;
};

std::string name_of(const Setting& setting) {
  return std::to_string(setting.ranks) + " ranks, " + row_of(setting.options.strategy).name +
         ", replicate " + std::to_string(setting.options.mesh.replicate) + ", ep " +
         std::to_string(setting.options.mesh.ep) + ", bucket_bytes " +
         std::to_string(setting.options.bucket_bytes) + ", alignment " +
         std::to_string(setting.options.alignment_numel);
}

/// Parameters of 0 and 1 elements, a scalar, fewer elements than ranks, bf16, frozen, tied.
Model odd_model() {
  Model model;
  const UnitId embed = model.add_unit("embed");
  model.add_parameter(embed, {.name = "tokens", .shape = {7, 5}});
  model.add_parameter(embed, {.name = "frozen", .shape = {11}, .trainable = false});
  const UnitId block = model.add_unit("block");
  model.add_parameter(block, {.name = "none", .shape = {3, 0}});
  model.add_parameter(block, {.name = "one", .shape = {1}});
  model.add_parameter(block, {.name = "scalar", .shape = {}});
  model.add_parameter(block, {.name = "half", .shape = {6, 3}, .dtype = DType::bf16});
  model.add_parameter(block, {.name = "few", .shape = {2}});
  model.add_parameter(
      block, {.name = "frozen_half", .shape = {5}, .dtype = DType::bf16, .trainable = false});
  const UnitId head = model.add_unit("head");
  model.add_parameter(head, {.name = "w", .shape = {101}});
  model.tie(head, "out", embed, "tokens");
  return model;
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::sharded_optimizer, Strategy::owner_broadcast}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      all.push_back({ranks, {.strategy = strategy}});
    }
    all.push_back({3, {.strategy = strategy, .bucket_bytes = 64, .alignment_numel = 1}});
  }
  for (const Strategy strategy : {Strategy::full_shard, Strategy::sharded_optimizer}) {
    all.push_back({4, {.strategy = strategy, .mesh = {.replicate = 2}}});
  }
  return all;
}

struct Saved {
  Setting setting;
  std::unique_ptr<TestFolder> folder = std::make_unique<TestFolder>();
  WholeState state{};  ///< when it was saved
  WholeState later{};  ///< a step later
};

void train_and_save(const Model& model, Saved& saved) {
  REQUIRE(with_runtime(saved.setting.ranks, model, saved.setting.options,
                       [&](Runtime& runtime, World& world, Findings&) {
                         ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
                         AdamW adamw({.learning_rate = 0.01F});
                         for (int step = 0; step < 3; ++step) {
                           toy_step(runtime, world.rank(), step, adamw);
                         }
                         saved.state.add(runtime);
                         save(runtime, saved.folder->path(),
                              {.blob = "of rank " + std::to_string(world.rank())});
                         toy_step(runtime, world.rank(), 3, adamw);
                         saved.later.add(runtime);
                       }) == "");
}

/// Loads into a runtime that has trained with other values before.
void load_and_compare(const Model& model, const Saved& saved, const Setting& setting) {
  WholeState loaded;
  WholeState later;
  CHECK(with_runtime(
            setting.ranks, model, setting.options,
            [&](Runtime& runtime, World& world, Findings& findings) {
              AdamW adamw({.learning_rate = 0.01F});
              runtime.initialize([](ParameterView view) { std::ranges::fill(view.data, 2.0F); });
              toy_step(runtime, world.rank(), 9, adamw);
              static_cast<void>(runtime.state("other", 0));
              std::ranges::fill(runtime.state("other", 0), 1.0F);
              const auto result = load(runtime, saved.folder->path());
              findings.equal(result.step, std::uint64_t{3}, "step");
              findings.equal(result.world_size, saved.setting.ranks, "world size");
              findings.equal(result.blobs.size(), static_cast<std::size_t>(saved.setting.ranks),
                             "blobs");
              for (std::size_t rank = 0; rank < result.blobs.size(); ++rank) {
                findings.expect(result.blobs[rank] == "of rank " + std::to_string(rank), "blob");
              }
              findings.expect(std::ranges::all_of(runtime.state("other", 0),
                                                  [](float each) { return each == 0.0F; }),
                              "a state that the checkpoint has not is not zero");
              runtime.impl().states.erase("other");
              loaded.add(runtime);
              toy_step(runtime, world.rank(), 3, adamw);
              later.add(runtime);
            }) == "");
  CHECK(saved.state.difference(loaded) == "");
  if (setting.ranks == saved.setting.ranks && setting.options.mesh == saved.setting.options.mesh) {
    CHECK(saved.later.difference(later) == "");
  }
}

TEST_CASE("what any world saves any other loads, bit for bit") {
  const Model model = odd_model();
  const std::vector<Setting> all = settings();
  for (const Setting& from : all) {
    Saved saved{.setting = from};
    CAPTURE(name_of(from));
    train_and_save(model, saved);
    CHECK(saved.state.tensors() == 8 + 6 * 2);  // AdamW has two states of what is trained
    for (const Setting& to : all) {
      CAPTURE(name_of(to));
      load_and_compare(model, saved, to);
    }
  }
}

Model model_of_experts() {
  Model model;
  const UnitId dense = model.add_unit("dense");
  model.add_parameter(dense, {.name = "w", .shape = {13}});
  const UnitId experts = model.add_unit("experts");
  model.add_parameter(experts, {.name = "up", .shape = {5, 3}, .group = std::string(expert_group)});
  model.add_parameter(experts, {.name = "b", .shape = {1}, .group = std::string(expert_group)});
  return model;
}

TEST_CASE("experts keep their values, whatever the ranks that hold them") {
  std::vector<Setting> all;
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::sharded_optimizer, Strategy::owner_broadcast}) {
    for (const int ranks : {2, 4, 6}) {
      all.push_back({ranks, {.strategy = strategy, .mesh = {.ep = 2}}});
    }
  }
  all.push_back({4, {.mesh = {.replicate = 2, .ep = 2}}});
  const Model model = model_of_experts();
  for (const Setting& from : all) {
    Saved saved{.setting = from};
    CAPTURE(name_of(from));
    train_and_save(model, saved);
    CHECK(saved.state.tensors() == 3 * (1 + 2 + 2));
    CHECK(saved.state.values("weights/experts.up") != saved.state.values("weights/experts.up#1"));
    for (const Setting& to : all) {
      CAPTURE(name_of(to));
      load_and_compare(model, saved, to);
    }
  }
}

TEST_CASE("of several copies of the model one is in the files") {
  Saved saved{.setting = {4, {.mesh = {.replicate = 2}}}};
  train_and_save(odd_model(), saved);
  const auto folder = saved.folder->path() / "step-000000003";
  CHECK(listing(folder) ==
        "index.json rank-00000.safetensors rank-00001.safetensors rank-00002.safetensors "
        "rank-00003.safetensors");
  CHECK(bytes_of(folder / "rank-00001.safetensors").find("weights/") != std::string::npos);
  CHECK(bytes_of(folder / "rank-00002.safetensors").find("weights/") == std::string::npos);
  CHECK(bytes_of(folder / "rank-00003.safetensors").find("of rank 3") != std::string::npos);
}

TEST_CASE("ranks may give one checkpoint by several paths, but not several checkpoints") {
  TestFolder folder;
  CHECK(with_runtime(
            3, toy_model({{5}, {9}}), {}, [&](Runtime& runtime, World& world, Findings& findings) {
              ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
              AdamW adamw;
              toy_step(runtime, world.rank(), 0, adamw);
              save(runtime, folder.path());
              toy_step(runtime, world.rank(), 1, adamw);
              save(runtime, folder.path());
              const auto first = folder.path() / "step-000000001";
              const auto second = folder.path() / "step-000000002";
              const auto link = folder.path() / "latest";
              if (world.rank() == 0) {
                std::filesystem::create_directory_symlink(second, link);
              }
              world.barrier();
              const std::array<std::array<std::filesystem::path, 3>, 3> same{{
                  {link, second, folder.path()},
                  {folder.path(), link, second},
                  {second, folder.path(), link},
              }};
              for (const auto& paths : same) {
                findings.equal(load(runtime, paths[static_cast<std::size_t>(world.rank())]).step,
                               std::uint64_t{2}, "step");
              }
              expect_refused(
                  findings, "another checkpoint",
                  {"rank 2 was given another checkpoint than rank 0; all ranks load the same one"},
                  [&] { load(runtime, world.rank() == 2 ? first : second); },
                  ErrorCode::bad_configuration);
              findings.equal(runtime.steps(), std::uint64_t{2}, "steps after the refusal");
            }) == "");
}

}  // namespace
}  // namespace troupe::test
