/// Saves that go on while training does.
#include "troupe/runtime/checkpoint/rank_content.hpp"
#include "troupe/test/support/checkpoints.hpp"
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <array>
#include <future>
#include <thread>

namespace troupe::test {
namespace {

/// A file hook that holds every writer up until it is opened.
class WriterGate {
 public:
  void open() { promise_.set_value(); }
  FileHook hook() {
    return [future = future_](FileOperation operation, const std::filesystem::path&) {
      if (operation == FileOperation::write) {
        future.wait();
      }
      return Result<void>();
    };
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

TEST_CASE("S46: an asynchronous save holds the values from before the next update, all of them") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    TestFolder folder;
    WriterGate gate;
    WholeState before;
    WholeState later;
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), variant.options);
            AdamW adamw;
            const auto step = [&] {
              {
                const auto scope = trainer.runtime.micro_batch();
                for (UnitId layer = 0; layer < 4; ++layer) {
                  const Use use = trainer.runtime.forward(layer);
                }
                for (UnitId layer = 4; layer-- > 0;) {
                  const Use use = trainer.runtime.backward(layer);
                  std::ranges::fill(use.gradient("w").as<float>(), 1.0F);
                }
              }
              trainer.runtime.finish_gradients();
              adamw.step(trainer.runtime);
            };
            step();
            before.add(trainer.runtime);
            AsyncSave save = save_async(trainer.runtime, folder.path(), {.before = gate.hook()});
            findings.expect(!save.done(), "a writer that is held up is done");
            step();
            step();
            later.add(trainer.runtime);
            findings.expect(!save.done(), "a writer that is held up is done");
            // Weights and two states of what this rank owns.
            std::int64_t own = 0;
            for (const Bucket& bucket : trainer.runtime.bucket_plan().buckets) {
              for (const ShardPiece& piece :
                   saved_pieces(trainer.runtime.impl(), world.rank(), bucket.id)) {
                own += piece.numel;
              }
            }
            findings.equal(save.snapshot_bytes(), 3 * 4 * own, "snapshot bytes");
            world.barrier();
            if (world.rank() == 0) {
              findings.expect(!newest_checkpoint(folder.path()), "there is one already");
              gate.open();
            }
            save.finish();
            findings.expect(save.done(), "what is finished is not done");
            findings.equal(save.snapshot_bytes(), 0, "snapshot bytes afterwards");
            save.finish();
          }) == "");
    CHECK(before.difference(later) != "");
    WholeState loaded;
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), variant.options);
            load(trainer.runtime, folder.path());
            loaded.add(trainer.runtime);
          }) == "");
    CHECK(before.difference(loaded) == "");
  }
}

TEST_CASE("a writer that takes too long is named on all ranks, and the world goes on") {
  TestFolder folder;
  WriterGate gate;
  std::array<std::string, 2> told;
  World::local(2, {.timeout = std::chrono::milliseconds{600}}).run([&](World& world) {
    Runtime runtime(world, toy_model({{5}, {9}}));
    runtime.initialize([](ParameterView) {});
    AsyncSave save = save_async(runtime, folder.path(),
                                {.before = world.rank() == 1 ? gate.hook() : FileHook()});
    try {
      save.finish();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::storage);
      CHECK(error.failure().rank == 1);
      told[static_cast<std::size_t>(world.rank())] = error.what();
    }
    world.barrier();
    if (world.rank() == 0) {
      gate.open();
    }
  });
  CHECK(told[0] == told[1]);
  CHECK(told[0].find("rank 1: ") == 0);
  CHECK(told[0].find(" of step 0 was not written within 450 ms") != std::string::npos);
  CHECK_FALSE(newest_checkpoint(folder.path()));
}

/// Two ranks that train and save; what is left in the folder afterwards.
struct Training {
  TestFolder folder;
  std::string left;

  std::string run(
      const std::function<void(Runtime&, World&, const std::function<void()>& step)>& body) {
    const std::string found = with_runtime(
        2, toy_model({{5, 8}, {9}}), {}, [&](Runtime& runtime, World& world, Findings&) {
          ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
          AdamW adamw;
          int index = 0;
          body(runtime, world, [&] { toy_step(runtime, world.rank(), index++, adamw); });
        });
    left = listing(folder.path());
    return found;
  }
  /// What loading gives, on one rank.
  void load_into(WholeState& state) {
    CHECK(with_runtime(1, toy_model({{5, 8}, {9}}), {}, [&](Runtime& runtime, World&, Findings&) {
            load(runtime, folder.path());
            state.add(runtime);
          }) == "");
  }
};

TEST_CASE("the next save makes the one before it complete") {
  Training training;
  WholeState first;
  WholeState second;
  WholeState loaded;
  CHECK(training.run([&](Runtime& runtime, World&, const auto& step) {
    step();
    first.add(runtime);
    auto one = save_async(runtime, training.folder.path());
    step();
    second.add(runtime);
    auto two = save_async(runtime, training.folder.path());
    CHECK(newest_checkpoint(training.folder.path()) == training.folder.path() / "step-000000001");
    one.finish();  // it is
    step();
    save(runtime, training.folder.path(), {.keep = 3});
    two.finish();
  }) == "");
  CHECK(training.left == "step-000000001 step-000000002 step-000000003");
  std::filesystem::remove_all(training.folder.path() / "step-000000003");
  training.load_into(loaded);
  CHECK(second.difference(loaded) == "");
  CHECK(first.difference(loaded) != "");
}

TEST_CASE("a load makes the save before it complete") {
  Training training;
  WholeState saved;
  WholeState loaded;
  CHECK(training.run([&](Runtime& runtime, World&, const auto& step) {
    step();
    saved.add(runtime);
    static_cast<void>(save_async(runtime, training.folder.path()));
    step();
    load(runtime, training.folder.path());
    loaded.add(runtime);
  }) == "");
  CHECK(saved.difference(loaded) == "");
}

TEST_CASE("the end of a runtime gives up a save that nobody has finished") {
  Training training;
  WholeState first;
  WholeState loaded;
  std::optional<AsyncSave> outlives;
  CHECK(training.run([&](Runtime& runtime, World& world, const auto& step) {
    step();
    save(runtime, training.folder.path());
    first.add(runtime);
    step();
    AsyncSave save = save_async(runtime, training.folder.path());
    if (world.rank() == 0) {
      outlives = save;
    }
  }) == "");
  CHECK(training.left == "step-000000001 step-000000002.tmp");
  CHECK(outlives->done());
  CHECK_THROWS_WITH_AS(outlives->finish(),
                       "AsyncSave::finish after the end of its runtime; the save was given up",
                       Error);
  training.load_into(loaded);
  CHECK(first.difference(loaded) == "");
  CHECK(training.run([&](Runtime& runtime, World&, const auto& step) {
    load(runtime, training.folder.path());
    step();
    save(runtime, training.folder.path());
  }) == "");
  CHECK(training.left == "step-000000001 step-000000002");
}

TEST_CASE("a writer that is given up does nothing more") {
  Training training;
  std::atomic<int> held_up{0};
  std::atomic<int> later{0};
  std::array<std::optional<AsyncSave>, 2> outlive;
  CHECK(training.run([&](Runtime& runtime, World& world, const auto& step) {
    step();
    // Holds the writer up until the end of its runtime has begun.
    const auto hold = [&, left = runtime.impl().weak_from_this()](FileOperation operation,
                                                                  const std::filesystem::path&) {
      later += left.expired() ? 1 : 0;
      if (operation == FileOperation::write) {
        ++held_up;
        while (!left.expired()) {
          std::this_thread::yield();
        }
        // Time enough for its first statement.
        std::this_thread::sleep_for(std::chrono::milliseconds{200});
      }
      return Result<void>();
    };
    outlive[static_cast<std::size_t>(world.rank())] =
        save_async(runtime, training.folder.path(), {.before = hold});
    while (held_up < 2) {
      std::this_thread::yield();
    }
  }) == "");
  for (const auto& save : outlive) {
    while (!save->done()) {
      std::this_thread::yield();
    }
  }
  outlive = {};  // waits for a thread that is still there
  CHECK(held_up == 2);
  CHECK(later == 0);
  CHECK(training.left == "step-000000001.tmp");
}

TEST_CASE("an exception between a save's beginning and its end leaves the last one") {
  Training training;
  WholeState first;
  WholeState loaded;
  CHECK(training.run([&](Runtime& runtime, World& world, const auto& step) {
    step();
    save(runtime, training.folder.path());
    first.add(runtime);
    step();
    AsyncSave save = save_async(runtime, training.folder.path());
    if (world.rank() == 1) {
      throw std::runtime_error("out of luck");
    }
    save.finish();
  }) == "rank 1 failed: out of luck\n");
  // Rank 0 has removed the rest if it was waiting for rank 1 already.
  CHECK(
      (training.left == "step-000000001" || training.left == "step-000000001 step-000000002.tmp"));
  training.load_into(loaded);
  CHECK(first.difference(loaded) == "");
}

TEST_CASE("what a writer's thread could not write is told by whoever makes the save complete") {
  const auto failing = [](World& world) -> SaveOptions {
    return {.before = [rank = world.rank()](FileOperation operation,
                                            const std::filesystem::path&) -> Result<void> {
      if (rank == 1 && operation == FileOperation::sync) {
        return Failure{.code = ErrorCode::storage, .text = "no space"};
      }
      return {};
    }};
  };
  const auto expect_error = [](Findings& findings, const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      findings.expect(std::string(error.what()) == "rank 1: no space", error.what());
      findings.equal(error.failure().rank, 1, "rank at fault");
      return;
    }
    findings.expect(false, "no error");
  };
  Findings findings;
  Training training;
  CHECK(training.run([&](Runtime& runtime, World& world, const auto& step) {
    step();
    AsyncSave one = save_async(runtime, training.folder.path(), failing(world));
    expect_error(findings, [&] { one.finish(); });
    expect_error(findings, [&] { one.finish(); });
    step();
    AsyncSave two = save_async(runtime, training.folder.path(), failing(world));
    expect_error(findings, [&] { save(runtime, training.folder.path()); });
    expect_error(findings, [&] { two.finish(); });
    save(runtime, training.folder.path());
  }) == "");
  CHECK(findings.text() == "");
  CHECK(training.left == "step-000000002");
}

}  // namespace
}  // namespace troupe::test
