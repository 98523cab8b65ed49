/// What went wrong, or could have, where the parts of a training loop meet.
#include "troupe/test/support/checkpoints.hpp"
#include "troupe/test/support/d4.hpp"
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <stdexcept>

namespace troupe::test {
namespace {

TEST_CASE("a parameter without elements is never unused") {
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    Options options;
    options.strategy = strategy;
    options.unused_parameters = UnusedParameters::error;
    CHECK(on_ranks(2, [&](World& world, Findings& findings) {
            Model model;
            const UnitId unit = model.add_unit("L0");
            model.add_parameter(unit, {.name = "w", .shape = {5}});
            model.add_parameter(unit, {.name = "none", .shape = {0, 3}});
            model.add_parameter(model.add_unit("L1"), {.name = "none", .shape = {0}});
            Runtime runtime(world, model, options);
            runtime.initialize([](ParameterView) {});
            {
              const auto micro_batch = runtime.micro_batch();
              const Use use = runtime.backward(0);
              std::ranges::fill(use.gradient("w").as<float>(), 1.0F);
            }
            runtime.finish_gradients();
            findings.equal(runtime.steps(), std::uint64_t{1}, "steps");
          }) == "");
  }
}

TEST_CASE("a group without a predicate is refused where the optimizer is made") {
  const auto refused = [](const std::function<void()>& make) {
    try {
      make();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_configuration);
      CHECK(std::string(error.what()) ==
            "ParameterGroup::parameters of group 1 is empty; expected a "
            "function that says which parameters are in it");
      return;
    }
    FAIL("not refused");
  };
  const auto all = [](const Parameter&) { return true; };
  refused([&] { AdamW({.groups = {{.parameters = all}, {.parameters = nullptr}}}); });
  refused([&] { Sgd({.groups = {{.parameters = all}, {.parameters = {}}}}); });
}

TEST_CASE("an optimizer that throws before it touches a shard leaves no trace in a step given up") {
  for (const bool first_frozen : {false, true}) {
    CAPTURE(first_frozen);
    CHECK(on_ranks(2, [&](World& world, Findings& findings) {
            Model model;
            for (int layer = 0; layer < 3; ++layer) {
              model.add_parameter(
                  model.add_unit("L" + std::to_string(layer)),
                  {.name = "w", .shape = {64}, .trainable = layer > 0 || !first_frozen});
            }
            D4Trainer trainer(world, findings, model, {});
            Runtime& runtime = trainer.runtime;
            bool broken = false;
            AdamW optimizer({.groups = {{.parameters = [&](const Parameter& parameter) -> bool {
                               if (broken && parameter.full_name == "L2.w") {
                                 throw std::runtime_error("no such table");
                               }
                               return false;
                             }}}});
            const auto gradients = [&] {
              {
                const auto micro_batch = runtime.micro_batch();
                for (UnitId unit = 3; unit-- > 0;) {
                  trainer.contribute(runtime.backward(unit), unit, 1.0F);
                }
              }
              runtime.finish_gradients();
            };
            gradients();
            optimizer.step(runtime);
            const std::vector<float> before = runtime.full_parameter("L1.w");
            broken = true;
            try {
              gradients();
              world.barrier();
              optimizer.step(runtime);
              findings.expect(false, "nothing was thrown");
            } catch (const std::exception& exception) {
              runtime.abort_step(exception.what());
            }
            findings.equal(runtime.steps(), std::uint64_t{1}, "steps");
            for (const ParameterId id : {1U, 2U}) {
              findings.equal(runtime.counts("adamw.step")[id], std::uint64_t{1}, "counts");
            }
            findings.expect(runtime.full_parameter("L1.w") == before, "L1.w has moved");
          }) == "");
  }
}

TEST_CASE("an update that was begun and not used is no update for a step given up") {
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, d4_model(2), {});
          trainer.step();
          try {
            trainer.micro_batch();
            trainer.runtime.finish_gradients();
            world.barrier();
            const Update update = trainer.runtime.update();
            throw std::runtime_error("no");
          } catch (const std::exception& exception) {
            trainer.runtime.abort_step(exception.what());
            trainer.oracle.drop();
          }
          findings.equal(trainer.runtime.steps(), std::uint64_t{1}, "steps");
          trainer.step();
          findings.equal(trainer.runtime.steps(), std::uint64_t{2}, "steps");
          trainer.expect_oracle();
        }) == "");
}

TEST_CASE("a state whose name is no UTF-8 is refused by a save, not saved as another") {
  TestFolder folder;
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, d4_model(2), {});
          std::ranges::fill(trainer.runtime.state("m\xff", 0), 3.0F);
          expect_refused(
              findings, "save", {"UTF-8"}, [&] { save(trainer.runtime, folder.path()); },
              ErrorCode::bad_configuration);
        }) == "");
}

TEST_CASE("an empty path is an error on all ranks, whichever has it") {
  TestFolder folder;
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, d4_model(2), {});
          const auto at = [&](int rank) {
            return world.rank() == rank ? std::filesystem::path() : folder.path();
          };
          for (const int rank : {0, 1}) {
            expect_refused(
                findings, "save", {"path"}, [&] { save(trainer.runtime, at(rank)); },
                ErrorCode::storage);
            expect_refused(
                findings, "save_async", {"path"}, [&] { save_async(trainer.runtime, at(rank)); },
                ErrorCode::storage);
          }
          save(trainer.runtime, folder.path());
          for (const int rank : {0, 1}) {
            expect_refused(
                findings, "load", {"path"}, [&] { load(trainer.runtime, at(rank)); },
                ErrorCode::storage);
          }
          expect_refused(
              findings, "export", {"path"}, [&] { export_full(trainer.runtime, at(0)); },
              ErrorCode::storage);
          trainer.step();
          trainer.expect_oracle();
        }) == "");
}

TEST_CASE("a hook that throws what is no std::exception fails the save, not the process") {
  TestFolder folder;
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, d4_model(2), {});
          const FileHook hook = [&](FileOperation operation,
                                    const std::filesystem::path&) -> Result<void> {
            if (world.rank() == 1 && operation == FileOperation::write) {
              throw 5;
            }
            return {};
          };
          expect_refused(
              findings, "save", {"rank 1"},
              [&] { save(trainer.runtime, folder.path(), {.before = hook}); }, ErrorCode::storage);
          AsyncSave pending = save_async(trainer.runtime, folder.path(), {.before = hook});
          expect_refused(
              findings, "finish", {"rank 1"}, [&] { pending.finish(); }, ErrorCode::storage);
          const FileHook first = [&](FileOperation, const std::filesystem::path&) -> Result<void> {
            throw 5;
          };
          expect_refused(
              findings, "save", {"rank 0"},
              [&] { save(trainer.runtime, folder.path(), {.before = first}); }, ErrorCode::storage);
          expect_refused(
              findings, "export", {"rank 0"},
              [&] { export_full(trainer.runtime, folder.path() / "f", {.before = first}); },
              ErrorCode::storage);
          trainer.step();
          trainer.expect_oracle();
        }) == "");
}

TEST_CASE("between finish_gradients and the update nothing is saved or planned anew") {
  TestFolder folder;
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, d4_model(2), {});
          trainer.micro_batch();
          trainer.runtime.finish_gradients();
          expect_refused(findings, "save", {"behind the update"},
                         [&] { save(trainer.runtime, folder.path()); });
          expect_refused(findings, "set_trainable", {"behind the update"},
                         [&] { trainer.runtime.set_trainable({"L0.w"}, false); });
          trainer.optimize();
          save(trainer.runtime, folder.path());
          trainer.expect_oracle();
        }) == "");
}

TEST_CASE("the report of a step has nothing of one that was given up for unused parameters") {
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, d4_model(2),
                            {.unused_parameters = UnusedParameters::error});
          trainer.step();
          trainer.step();
          const auto right = trainer.runtime.report().collectives_last_step;
          {
            const auto micro_batch = trainer.runtime.micro_batch();
            trainer.forward(0);
            trainer.forward(1);
          }
          expect_refused(findings, "unused", {"L0.w"}, [&] { trainer.runtime.finish_gradients(); });
          trainer.step();
          findings.expect(trainer.runtime.report().collectives_last_step == right,
                          "other collectives");
        }) == "");
}

TEST_CASE("the report goes on when parameters are planned anew") {
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, d4_model(2), {});
          trainer.step();
          trainer.step();
          const Report before = trainer.runtime.report();
          trainer.runtime.set_trainable({"L0.w"}, false);
          const Report after = trainer.runtime.report();
          findings.equal(before.steps_timed, std::uint64_t{2}, "steps timed");
          findings.equal(after.steps_timed, before.steps_timed, "steps timed");
          findings.expect(after.time_last_step.has_value(), "no time of the last step");
        }) == "");
}

TEST_CASE("divisors beyond the range of fp32 are refused, or done in steps") {
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          for (const float divisor : {1e30F, 1e-30F}) {
            Options options;
            options.gradient_divisor = divisor;
            D4Trainer trainer(world, findings, d4_model(2), options);
            trainer.micro_batch();
            expect_refused(findings, "scale", {"loss scale"},
                           [&] { trainer.runtime.finish_gradients(divisor > 1 ? 1e20F : 1e-20F); });
          }
          D4Trainer trainer(world, findings, d4_model(1, 4), {});
          {
            const auto micro_batch = trainer.runtime.micro_batch();
            const Use use = trainer.runtime.backward(0);
            std::ranges::fill(use.gradient("w").as<float>(), 1e30F);
          }
          trainer.runtime.finish_gradients();
          trainer.runtime.clip_gradients(1e-20F);
          const double norm = trainer.runtime.gradient_norm().norm;
          findings.expect(norm > 0.99e-20 && norm < 1.01e-20,
                          "norm " + std::to_string(norm * 1e20));
        }) == "");
}

}  // namespace
}  // namespace troupe::test
