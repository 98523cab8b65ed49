/// Files of checkpoints that are damaged, missing, foreign or of another model: each is named, the
/// same on all ranks, and nothing changes.
#include "troupe/runtime/checkpoint/index.hpp"
#include "troupe/runtime/checkpoint/safetensors.hpp"
#include "troupe/runtime/checkpoint/storage.hpp"
#include "troupe/test/support/checkpoints.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

namespace fs = std::filesystem;

Model two_units() {
  return toy_model({{5, 8}, {9}});
}

/// A checkpoint of two ranks, step 1, and what becomes of loading it when it is damaged.
class Damage {
 public:
  Damage() {
    REQUIRE(with_runtime(2, two_units(), {}, [&](Runtime& runtime, World& world, Findings&) {
              ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
              AdamW adamw;
              toy_step(runtime, world.rank(), 0, adamw);
              save(runtime, good_.path());
              toy_step(runtime, world.rank(), 1, adamw);
              save(runtime, good_.path());
            }) == "");
  }

  static constexpr const char* rank0 = "rank-00000.safetensors";
  static constexpr const char* rank1 = "rank-00001.safetensors";

  /// The error of all ranks. Nothing of the runtime has changed.
  std::string error(const std::function<void(const fs::path& checkpoint)>& damage) {
    TestFolder folder;
    fs::copy(good_.path() / "step-000000001", folder.path() / "step-000000001");
    damage(folder.path() / "step-000000001");
    Errors errors(3);
    WholeState before;
    WholeState after;
    CHECK(with_runtime(3, two_units(), {}, [&](Runtime& runtime, World& world, Findings&) {
            ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
            AdamW adamw;
            toy_step(runtime, world.rank(), 5, adamw);
            before.add(runtime);
            errors.note(world, [&] { load(runtime, folder.path()); });
            after.add(runtime);
            toy_step(runtime, world.rank(), 6, adamw);  // the world goes on
          }) == "");
    CHECK((errors.texts[0].empty() || before.difference(after) == ""));
    return errors.same(folder.path());
  }
  /// The same, for a rank's file that is rewritten and an index that tells of it as it is then.
  std::string error_of_file(
      const char* name,
      const std::function<void(std::vector<TensorSpec>&, TensorMetadata&)>& change) {
    return error([&](const fs::path& checkpoint) {
      std::vector<TensorSpec> tensors;
      TensorMetadata metadata;
      const std::string bytes = bytes_of(checkpoint / name);
      const auto size = static_cast<std::int64_t>(bytes.size());
      const auto length = value_or_throw(safetensors_header_bytes(bytes, size));
      const auto stored = value_or_throw(parse_safetensors_header(
          std::string_view(bytes).substr(8, static_cast<std::size_t>(length)), size));
      for (const auto& [tensor, at] : stored.tensors) {
        tensors.push_back({tensor, at.type, at.shape});
      }
      metadata = stored.metadata;
      change(tensors, metadata);
      std::string text = value_or_throw(safetensors_header(tensors, metadata));
      for (const TensorSpec& tensor : tensors) {
        text.append(static_cast<std::size_t>(numel(tensor.shape) * size_of(tensor.type)), '\0');
      }
      write_bytes(checkpoint / name, text);
      auto index = value_or_throw(parse_index(bytes_of(checkpoint / "index.json")));
      IndexedFile& file = index.files[std::string(name) == rank0 ? 0 : 1];
      file = {static_cast<std::int64_t>(text.size()), hash_of(text)};
      write_bytes(checkpoint / "index.json", value_or_throw(to_json(index)));
    });
  }
  const fs::path& good() const { return good_.path(); }

 private:
  TestFolder good_;
};

TEST_CASE("what is damaged, missing or foreign is named, and nothing changes") {
  Damage damage;
  const std::string dir = "DIR/step-000000001";
  const auto flip = [](const fs::path& file, std::size_t from_end) {
    std::string bytes = bytes_of(file);
    bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 1);
    write_bytes(file, bytes);
  };
  CHECK(damage.error([](const fs::path&) {}) == "");
  CHECK(damage.error([](const fs::path& at) { fs::remove_all(at); }) ==
        "storage: rank 0: DIR: there is no checkpoint in it (a folder step-… or an index.json)");
  CHECK(damage.error([](const fs::path& at) { fs::remove(at / "index.json"); }) ==
        "storage: rank 0: cannot open " + dir + "/index.json: No such file or directory");
  CHECK(damage.error([](const fs::path& at) { fs::remove(at / Damage::rank1); }) ==
        "storage: rank 1: cannot open " + dir +
            "/rank-00001.safetensors: No such file or directory");
  CHECK(damage.error([](const fs::path& at) {
    fs::remove(at / Damage::rank1);
    fs::create_directory(at / Damage::rank1);
  }) == "storage: rank 1: cannot open " + dir + "/rank-00001.safetensors: it is no file");
  const auto bytes0 = fs::file_size(damage.good() / "step-000000001" / Damage::rank0);
  CHECK(damage.error([&](const fs::path& at) {
    fs::resize_file(at / Damage::rank0, bytes0 - 1);
  }) == "storage: rank 0: " + dir + "/rank-00000.safetensors: it has " +
            std::to_string(bytes0 - 1) + " bytes, expected " + std::to_string(bytes0));
  CHECK(damage.error([](const fs::path& at) { fs::resize_file(at / Damage::rank0, 0); }) ==
        "storage: rank 0: " + dir + "/rank-00000.safetensors: it has 0 bytes, expected " +
            std::to_string(bytes0));
  CHECK(damage.error([&](const fs::path& at) { flip(at / Damage::rank0, 1); }) ==
        "storage: rank 0: " + dir +
            "/rank-00000.safetensors: its checksum is another than the index says: it is damaged");
  CHECK(damage.error([&](const fs::path& at) {
    std::string bytes = bytes_of(at / Damage::rank1);
    bytes.replace(0, 8, "PK\x03\x04....");
    write_bytes(at / Damage::rank1, bytes);
  }) == "storage: rank 1: " + dir +
            "/rank-00001.safetensors: its header would have 3327647949844073296 bytes, expected at "
            "most 100000000: no safetensors file");
  CHECK(damage.error([&](const fs::path& at) {
    fs::copy_file(at.parent_path() / "step-000000001" / Damage::rank0, at / "x");
    std::string bytes = bytes_of(at / Damage::rank0);
    bytes[9] = '\'';
    write_bytes(at / Damage::rank0, bytes);
  }) == "storage: rank 0: " + dir + "/rank-00000.safetensors: its header: no JSON at byte 2");
  // Of another step of the same run, and so of the same size.
  CHECK(damage.error([&](const fs::path& at) {
    fs::copy_file(damage.good() / "step-000000002" / Damage::rank0, at / Damage::rank0,
                  fs::copy_options::overwrite_existing);
  }) == "storage: rank 0: " + dir + "/rank-00000.safetensors: its step is '2', expected '1'");
  CHECK(damage.error([](const fs::path& at) { fs::resize_file(at / "index.json", 100); }) ==
        "storage: rank 0: " + dir + "/index.json: no JSON at byte 101");
  CHECK(damage.error([](const fs::path& at) {
    std::string text = bytes_of(at / "index.json");
    text.replace(text.find("\"version\": 1"), 12, "\"version\": 0");
    write_bytes(at / "index.json", text);
  }) == "storage: rank 0: " + dir + "/index.json: it is of version 0; this build reads version 1");
  CHECK(damage.error([](const fs::path& at) {
    write_bytes(at / "index.json", "{\"weight_map\": {}}\n");
  }) == "storage: rank 0: " + dir + "/index.json: 'contents' is missing");
  CHECK(damage.error([](const fs::path& at) {
    std::string text = bytes_of(at / "index.json");
    text.replace(text.find("\"step\": 1"), 9, "\"step\": 2");
    write_bytes(at / "index.json", text);
  }) == "storage: rank 0: " + dir + "/index.json: its checksum is another than its contents have");
}

TEST_CASE("files that do not hold what the index says are named") {
  Damage damage;
  const std::string file1 = "storage: rank 1: DIR/step-000000001/rank-00001.safetensors: ";
  const auto find = [](std::vector<TensorSpec>& tensors, const std::string& name) {
    const auto found = std::ranges::find(tensors, name, &TensorSpec::name);
    REQUIRE(found != tensors.end());
    return found;
  };
  // A parameter whose state is there for a part of its pieces only.
  CHECK(damage.error_of_file(Damage::rank1, [&](auto& tensors, auto&) {
    tensors.erase(find(tensors, "states/adamw.m/u0.p1"));
  }) == file1 + "tensor 'states/adamw.m/u0.p1' is missing");
  CHECK(damage.error_of_file(Damage::rank1, [&](auto& tensors, auto&) {
    find(tensors, "weights/u0.p1")->shape = {7};
  }) == file1 + "tensor 'weights/u0.p1' has 7 elements, expected 8 of F32");
  CHECK(damage.error_of_file(Damage::rank1, [&](auto& tensors, auto&) {
    find(tensors, "weights/u0.p1")->type = TensorType::bf16;
  }) == file1 + "tensor 'weights/u0.p1' has 8 elements, expected 8 of F32");
  CHECK(damage.error_of_file(Damage::rank1, [&](auto& tensors, auto&) {
    tensors.push_back({"more", TensorType::f32, {1}});
  }) == file1 + "it has 5 tensors, expected 4");
  CHECK(damage.error_of_file(Damage::rank1, [&](auto& tensors, auto&) {
    tensors.erase(find(tensors, "blob"));
  }) == file1 + "tensor 'blob' of U8 is missing");
  CHECK(damage.error_of_file(Damage::rank1, [&](auto&, auto& metadata) {
    metadata.erase("format");
  }) == file1 + "its format is '', expected 'troupe checkpoint'");
  CHECK(damage.error_of_file(Damage::rank1, [&](auto&, auto& metadata) {
    metadata["rank"] = "0";
  }) == file1 + "its rank is '0', expected '1'");
}

TEST_CASE("a file that goes between its check and its reading leaves a world that can load again") {
  Damage damage;
  const fs::path file = damage.good() / "step-000000002" / Damage::rank1;
  const fs::path elsewhere = damage.good() / "elsewhere";
  WorldOptions options;
  options.timeout = std::chrono::seconds{20};
  options.on_launch = [&](int rank, const LaunchRecord& record) {
    std::error_code gone;
    if (rank == 0 && record.label == "of the blobs of a checkpoint") {
      fs::rename(file, elsewhere, gone);  // all files are checked by now
    }
  };
  Errors errors(2);
  WholeState loaded;
  World::local(2, options).run([&](World& world) {
    Runtime runtime(world, two_units(), {});
    errors.note(world, [&] { load(runtime, damage.good()); });
    if (world.rank() == 0) {
      fs::copy_file(elsewhere, file);
      fs::remove(elsewhere);
      fs::create_directory(elsewhere);  // it stays where it is this time
    }
    world.barrier();
    load(runtime, damage.good());
    loaded.add(runtime);
  });
  CHECK(errors.same(damage.good()) ==
        "storage: rank 1: cannot open DIR/step-000000002/rank-00001.safetensors: No such file or "
        "directory; parameters are partly loaded");
  CHECK(loaded.tensors() == 3 * 3);
}

TEST_CASE("a checkpoint of another model is refused on all ranks") {
  Damage damage;
  const auto error = [&](const Model& model) {
    Errors errors(2);
    CHECK(with_runtime(2, model, {}, [&](Runtime& runtime, World& world, Findings&) {
            errors.note(world, [&] { load(runtime, damage.good() / "step-000000001"); });
            runtime.initialize([](ParameterView) {});
          }) == "");
    return errors.same(damage.good());
  };
  CHECK(error(two_units()) == "");
  CHECK(error(toy_model({{5, 8}, {9, 1}})) ==
        "bad configuration: rank 0: DIR/step-000000001: it has no parameter 'u1.p1', which the "
        "model has");
  CHECK(error(toy_model({{5}, {9}})) ==
        "bad configuration: rank 0: DIR/step-000000001: it has a parameter 'u0.p1', which the "
        "model does not have");
  CHECK(error(toy_model({{8, 5}, {9}})) ==
        "bad configuration: rank 0: DIR/step-000000001: parameter 'u0.p0' has shape (5) in it, "
        "the model's is (8)");
}

}  // namespace
}  // namespace troupe::test
