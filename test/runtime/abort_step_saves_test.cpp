/// Asynchronous saves that are under way, and planning anew, when a step is given up.
#include "troupe/runtime/checkpoint.hpp"
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/giving_up.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <latch>
#include <string>

namespace troupe::test {
namespace {

namespace fs = std::filesystem;

struct Folder {
  explicit Folder(const std::string& name)
      : path(fs::temp_directory_path() / ("troupe_abort_step_" + name)) {
    fs::remove_all(path);
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path path;
};

void give_a_step_up(D4Trainer& trainer) {
  try {
    const auto micro_batch = trainer.runtime.micro_batch();
    trainer.forward(0);
    if (trainer.world.rank() == 1) {
      throw GivesUp();
    }
    trainer.world.barrier();
  } catch (const std::exception& exception) {
    give_up(trainer, exception);
  }
}

TEST_CASE("a save that every rank still has goes on over a step given up") {
  const Folder folder("goes_on");
  std::latch all_save(3);
  CHECK(on_ranks(3, [&](World& world, Findings& findings) {
          const Model model = d4_model();
          D4Trainer trainer(world, findings, model, d4_options());
          trainer.step();
          AsyncSave saving = save_async(trainer.runtime, folder.path);
          all_save.arrive_and_wait();
          give_a_step_up(trainer);
          saving.finish();
          trainer.step();
          trainer.expect_oracle();
        }) == "");
  CHECK(fs::exists(folder.path / "step-000000001"));
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          const Model model = d4_model();
          Runtime runtime(world, model);
          findings.equal(load(runtime, folder.path).step, std::uint64_t{1}, "step loaded");
        }) == "");
}

TEST_CASE("a save that some rank has begun to finish is given up on all") {
  const Folder folder("given_up");
  std::latch all_save(3);
  std::latch finishing(1);
  CHECK(on_ranks(3, [&](World& world, Findings& findings) {
          const Model model = d4_model();
          D4Trainer trainer(world, findings, model, d4_options());
          trainer.step();
          AsyncSave saving = save_async(trainer.runtime, folder.path);
          all_save.arrive_and_wait();
          try {
            if (world.rank() == 0) {
              finishing.count_down();
              saving.finish();
            }
            finishing.wait();
            if (world.rank() == 1) {
              throw GivesUp();
            }
            world.barrier();
          } catch (const std::exception& exception) {
            give_up(trainer, exception);
          }
          const char* why = world.rank() == 0
                                ? "rank 1 has given up step 2: bad batch"
                                : "the save of step 1 was not finished: a step was given up before "
                                  "all ranks had finished it";
          try {
            saving.finish();
            findings.expect(false, "the save was finished");
          } catch (const Error& error) {
            findings.expect(error.what() == std::string(why),
                            "rank " + std::to_string(world.rank()) + ": " + error.what());
          }
          trainer.step();
          save(trainer.runtime, folder.path);
          trainer.expect_oracle();
        }) == "");
  CHECK_FALSE(fs::exists(folder.path / "step-000000001"));
  CHECK(fs::exists(folder.path / "step-000000002"));
}

TEST_CASE("a step given up instead of planning anew, and right behind it") {
  for (const bool behind : {false, true}) {
    CAPTURE(behind);
    CHECK(on_ranks(3, [&](World& world, Findings& findings) {
            Runtime runtime(world, d4_model());
            runtime.initialize([](ParameterView) {});
            try {
              if (world.rank() == 2 && !behind) {
                throw GivesUp();
              }
              runtime.set_trainable({"L1.w"}, false);
              if (world.rank() == 2) {
                throw GivesUp();
              }
              world.barrier();
            } catch (const std::exception& exception) {
              runtime.abort_step(exception.what());
            }
            {
              const auto micro_batch = runtime.micro_batch();
              for (UnitId unit = 0; unit < 4; ++unit) {
                const auto use = runtime.forward(unit);
              }
              for (UnitId unit = 4; unit-- > 0;) {
                const auto use = runtime.backward(unit);
                if (unit != 1 || !behind) {
                  std::ranges::fill(use.gradient("w").as<float>(), 1.0F);
                }
              }
            }
            runtime.finish_gradients();
            Sgd({.learning_rate = 1.0F}).step(runtime);
            for (UnitId unit = 0; unit < 4; ++unit) {
              const float right = unit == 1 && behind ? 0.0F : -1.0F;
              findings.equal(runtime.full_parameter("L" + std::to_string(unit) + ".w").front(),
                             right, "weights of unit " + std::to_string(unit));
            }
          }) == "");
  }
}

}  // namespace
}  // namespace troupe::test
