/// Saves that fail: every file operation that can, folders that will not do, calls at the wrong
/// place. The same error on all ranks, and the world goes on.
#include "troupe/test/support/checkpoints.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <functional>
namespace troupe::test {
namespace {

namespace fs = std::filesystem;

Model two_units() {
  return toy_model({{5, 8}, {9}});
}

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

TEST_CASE("what was never initialised is not saved or exported") {
  TestFolder folder;
  CHECK(with_runtime(2, two_units(), {}, [&](Runtime& runtime, World&, Findings& findings) {
          const auto refused = [&](const std::string& what, const std::function<void()>& call) {
            const std::string text = "troupe::" + what + ": the parameters of bucket " +
                                     runtime.bucket_plan().describe(0, runtime.model()) +
                                     " were never initialised; call runtime.initialize() or load "
                                     "first";
            expect_refused(findings, what, {text.c_str()}, call);
          };
          refused("save", [&] { save(runtime, folder.path()); });
          refused("save_async", [&] { save_async(runtime, folder.path()); });
          refused("export_full", [&] { export_full(runtime, folder.path() / "x"); });
          runtime.initialize([](ParameterView) {});
          save(runtime, folder.path());
        }) == "");
  CHECK(listing(folder.path()) == "step-000000000");
}

}  // namespace
}  // namespace troupe::test
