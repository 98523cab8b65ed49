/// What goes wrong with checkpoints: every file operation that can fail, every way in which files
/// can be damaged, calls at the wrong place. The same error on all ranks, and the world goes on.
#include "troupe/runtime/checkpoint/index.hpp"
#include "troupe/runtime/checkpoint/safetensors.hpp"
#include "troupe/runtime/checkpoint/storage.hpp"
#include "troupe/test/support/checkpoints.hpp"

#include <doctest/doctest.h>

#include <cstring>

namespace troupe::test {
namespace {

namespace fs = std::filesystem;

Model two_units() {
  return toy_model({{5, 8}, {9}});
}

/// Errors of a call that every rank makes, by rank; "" where there was none.
struct Errors {
  explicit Errors(int ranks) : texts(static_cast<std::size_t>(ranks)) {}
  void note(World& world, const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(world.rank())] =
          std::string(to_string(error.code())) + ": " + error.what();
    }
  }
  /// That of all ranks, with the folder as "DIR".
  std::string same(const fs::path& folder) const {
    for (const std::string& text : texts) {
      if (text != texts[0]) {
        return "ranks differ: " + texts[0] + " / " + text;
      }
    }
    std::string text = texts[0];
    const std::string name = folder.string();
    for (auto at = text.find(name); at != std::string::npos; at = text.find(name)) {
      text.replace(at, name.size(), "DIR");
    }
    return text;
  }
  std::vector<std::string> texts;
};

/// Fails the n-th operation of a rank.
FileHook failing_at(int n, std::atomic<int>& count) {
  return [n, &count](FileOperation operation, const fs::path& path) -> Result<void> {
    if (count++ == n) {
      return Failure{.code = ErrorCode::storage,
                     .text = std::string("cannot ") + to_string(operation) + " " +
                             path.filename().string() + ": No space left on device"};
    }
    return {};
  };
}

TEST_CASE("whichever file operation fails, all ranks hear it and the last checkpoint loads") {
  constexpr int ranks = 3;
  for (const bool asynchronous : {false, true}) {
    for (const int failing : {0, 1}) {
      int failures = 0;
      bool failed = true;
      for (int n = 0; failed; ++n) {
        REQUIRE(n < 100);
        CAPTURE(asynchronous);
        CAPTURE(failing);
        CAPTURE(n);
        TestFolder folder;
        Errors errors(ranks);
        WholeState first;
        WholeState loaded;
        std::atomic<int> count{0};
        std::string left;
        CHECK(with_runtime(ranks, two_units(), {}, [&](Runtime& runtime, World& world, Findings&) {
                ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
                AdamW adamw;
                toy_step(runtime, world.rank(), 0, adamw);
                save(runtime, folder.path(), {.keep = 1});
                first.add(runtime);
                toy_step(runtime, world.rank(), 1, adamw);
                SaveOptions options{.keep = 1};
                if (world.rank() == failing) {
                  options.before = failing_at(n, count);
                }
                errors.note(world, [&] {
                  if (asynchronous) {
                    save_async(runtime, folder.path(), options).finish();
                  } else {
                    save(runtime, folder.path(), options);
                  }
                });
                world.barrier();
                if (world.rank() == 0) {
                  left = listing(folder.path());
                }
                world.barrier();
                if (!errors.texts[0].empty()) {
                  load(runtime, folder.path());  // the world goes on
                  loaded.add(runtime);
                }
                save(runtime, folder.path() / "other");
              }) == "");
        const std::string error = errors.same(folder.path());
        failed = !error.empty();
        if (failed) {
          ++failures;
          CHECK(error.find("storage: rank " + std::to_string(failing) + ": cannot ") == 0);
          CHECK(error.find(": No space left on device") != std::string::npos);
          CHECK(first.difference(loaded) == "");
          CHECK(left.starts_with("step-000000001"));
          CHECK(left.find("step-000000002 ") == std::string::npos);
          CHECK_FALSE(left.ends_with("step-000000002"));
        } else {
          CHECK(count <= n + (failing == 0 ? 2 : 0));  // an old one may stay
          CHECK(left.find("step-000000002") != std::string::npos);
        }
      }
      // Rank 0: two folders, a sync; create, write, sync of its file and of the index; two syncs of
      // folders around the rename. Rank 1: create, write, sync.
      CHECK(failures == (failing == 0 ? 12 : 3));
    }
  }
}

TEST_CASE("everything is on the medium before its name says so") {
  TestFolder folder;
  std::string order;
  CHECK(with_runtime(1, two_units(), {}, [&](Runtime& runtime, World&, Findings&) {
          runtime.initialize([](ParameterView) {});
          fs::create_directory(folder.path() / "step-000000007.tmp");  // of a run that was killed
          fs::create_directory(folder.path() / "mine");
          runtime.impl().steps = 1;
          save(runtime, folder.path(), {.keep = 1});
          runtime.impl().steps = 2;
          save(runtime, folder.path(),
               {.keep = 1, .before = [&](FileOperation operation, const fs::path& path) {
                  order += std::string(to_string(operation)) + " " +
                           fs::relative(path, folder.path()).string() + "\n";
                  return Result<void>();
                }});
        }) == "");
  CHECK(order ==
        "make_folder .\n"
        "make_folder step-000000002.tmp\n"
        "sync_folder .\n"
        "create step-000000002.tmp/rank-00000.safetensors\n"
        "write step-000000002.tmp/rank-00000.safetensors\n"
        "sync step-000000002.tmp/rank-00000.safetensors\n"
        "create step-000000002.tmp/index.json\n"
        "write step-000000002.tmp/index.json\n"
        "sync step-000000002.tmp/index.json\n"
        "sync_folder step-000000002.tmp\n"
        "rename step-000000002\n"
        "sync_folder .\n"
        "rename step-000000001.tmp\n"
        "remove step-000000001.tmp\n");
  CHECK(listing(folder.path()) == "mine step-000000002");
}

TEST_CASE("the newest checkpoints are kept, as many as asked for") {
  TestFolder folder;
  CHECK(with_runtime(2, two_units(), {}, [&](Runtime& runtime, World&, Findings&) {
          runtime.initialize([](ParameterView) {});
          for (const int step : {1, 2, 5, 999'999'999, 1'000'000'000}) {
            runtime.impl().steps = static_cast<std::uint64_t>(step);
            save(runtime, folder.path(), {.keep = 3});
          }
        }) == "");
  CHECK(listing(folder.path()) == "step-000000005 step-1000000000 step-999999999");
  CHECK(newest_checkpoint(folder.path()) == folder.path() / "step-1000000000");
  CHECK(newest_checkpoint(folder.path() / "none") == std::nullopt);
}

TEST_CASE("a checkpoint that cannot be made is refused before anything is written") {
  TestFolder folder;
  write_bytes(folder.path() / "file", "x");
  const auto error_of = [&](const fs::path& path, const SaveOptions& options, std::uint64_t step) {
    Errors errors(2);
    CHECK(with_runtime(2, two_units(), {}, [&](Runtime& runtime, World& world, Findings&) {
            runtime.initialize([](ParameterView) {});
            runtime.impl().steps = step;
            errors.note(world, [&] { save(runtime, path, options); });
            world.barrier();
          }) == "");
    return errors.same(folder.path());
  };
  CHECK(error_of(folder.path() / "file", {}, 3) ==
        "storage: rank 0: cannot make the folder DIR/file: Not a directory");
  CHECK(error_of(folder.path() / "ok", {.keep = 0}, 3) ==
        "bad configuration: rank 0: SaveOptions::keep is 0; expected at least 1");
  CHECK(error_of(folder.path() / "ok", {}, 3) == "");
  CHECK(error_of(folder.path() / "ok", {}, 3) ==
        "bad configuration: rank 0: cannot save step 3 to DIR/ok: it has step-000000003; save to "
        "another folder, or remove what is not to be kept");
  CHECK(error_of(folder.path() / "ok", {}, 2) ==
        "bad configuration: rank 0: cannot save step 2 to DIR/ok: it has step-000000003; save to "
        "another folder, or remove what is not to be kept");
  CHECK(error_of(folder.path() / "ok", {}, 4) == "");
  CHECK(listing(folder.path() / "ok") == "step-000000003 step-000000004");
}

TEST_CASE("calls at the wrong place are refused and change nothing") {
  TestFolder folder;
  CHECK(with_runtime(2, two_units(), {}, [&](Runtime& runtime, World& world, Findings& findings) {
          ToyTrainer trainer{.runtime = runtime, .rank = world.rank()};
          trainer.initialize();
          const auto refused = [&](const std::string& where) {
            for (const char* what : {"save", "save_async", "load", "export_full"}) {
              std::string text;
              try {
                const std::string name = what;
                if (name == "save") {
                  save(runtime, folder.path());
                } else if (name == "save_async") {
                  save_async(runtime, folder.path());
                } else if (name == "load") {
                  load(runtime, folder.path());
                } else {
                  export_full(runtime, folder.path() / "x");
                }
              } catch (const Error& error) {
                text = error.code() == ErrorCode::misuse ? error.what() : "another code";
              }
              findings.expect(text == "troupe::" + std::string(what) + " was called " + where +
                                          "; expected between steps, behind the update",
                              where + ": " + text);
            }
          };
          {
            const auto eval = runtime.eval();
            refused("while a scope is open");
          }
          {
            const auto scope = runtime.micro_batch();
            refused("while a scope is open");
          }
          trainer.micro_batch(plain_micro_batch(2), {world.rank(), 0, 0});
          refused("before finish_gradients");
          runtime.finish_gradients();
          {
            Update update = runtime.update();
            refused("inside an update");
          }
          save(runtime, folder.path());
        }) == "");
  CHECK(listing(folder.path()) == "step-000000001");
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
