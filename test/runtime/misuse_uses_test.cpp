/// Wrong calls around uses: each is refused with a text that says what was wrong and what would do,
/// changes nothing, and training goes on as if it had not been made.
#include "troupe/test/support/d4.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <optional>

namespace troupe::test {
namespace {

/// Runs `misuse` on every rank in the middle of training, between the forwards and the backwards of
/// a micro-batch, and compares everything with the oracle.
void check_in_micro_batch(const std::function<void(D4Trainer&, const Use&)>& misuse,
                          const Options& options = d4_options()) {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const Model model = d4_model();
    CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, model, options);
            trainer.step();
            {
              const auto micro_batch = trainer.runtime.micro_batch();
              for (UnitId unit = 0; unit < 4; ++unit) {
                trainer.forward(unit);
              }
              {
                const Use use = trainer.runtime.backward(3);
                trainer.read(use, 3);
                trainer.contribute(use, 3, 1.0F);
                misuse(trainer, use);
                trainer.read(use, 3);  // still open, still there
              }
              for (UnitId unit = 3; unit-- > 0;) {
                trainer.backward(unit);
              }
            }
            trainer.runtime.finish_gradients();
            trainer.optimize();
            trainer.step();
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("a use is opened inside a micro-batch or eval, a backward not in eval") {
  for (const int ranks : {1, 2, 4}) {
    const Model model = d4_model();
    CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, model, d4_options());
            Runtime& runtime = trainer.runtime;
            trainer.micro_batch();
            expect_refused(findings, "forward outside",
                           {"forward of unit 'L1' outside a micro-batch and eval",
                            "open one with micro_batch() or eval()"},
                           [&] { static_cast<void>(runtime.forward(1)); });
            expect_refused(findings, "backward outside",
                           {"backward of unit 'L2' outside a micro-batch and eval"},
                           [&] { static_cast<void>(runtime.backward(2)); });
            {
              const auto eval = runtime.eval();
              trainer.forward(0);
              expect_refused(findings, "backward in eval",
                             {"backward of unit 'L0' inside eval", "only forwards"},
                             [&] { static_cast<void>(runtime.backward(0)); });
              expect_refused(findings, "nested eval", {"eval cannot begin inside eval"},
                             [&] { static_cast<void>(runtime.eval()); });
              expect_refused(findings, "micro-batch in eval",
                             {"a micro-batch cannot begin inside eval"},
                             [&] { static_cast<void>(runtime.micro_batch()); });
              expect_refused(findings, "step end in eval", {"the step cannot end inside eval"},
                             [&] { runtime.finish_gradients(); });
              expect_refused(findings, "update in eval", {"an update cannot begin inside eval"},
                             [&] { static_cast<void>(runtime.update()); });
              trainer.forward(3);
            }
            runtime.finish_gradients();
            trainer.optimize();
            trainer.step();
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("before initialisation there is nothing to use") {
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          Runtime runtime(world, d4_model());
          {
            const auto micro_batch = runtime.micro_batch();
            expect_refused(findings, "forward before initialize",
                           {"forward of unit 'L0': the parameters of bucket",
                            "are not initialised, or not updated since the last step",
                            "call runtime.update() first"},
                           [&] { static_cast<void>(runtime.forward(0)); });
          }
          const auto eval = runtime.eval();
          expect_refused(findings, "eval before initialize", {"unit 'L3'", "not initialised"},
                         [&] { static_cast<void>(runtime.forward(3)); });
        }) == "");
}

TEST_CASE("names, dtypes and views of a use") {
  check_in_micro_batch([](D4Trainer& trainer, const Use& use) {
    Findings& findings = trainer.findings;
    Runtime& runtime = trainer.runtime;
    expect_refused(findings, "wrong name", {"unit 3 'L3' has no parameter 'v'; it has 'w'"},
                   [&] { static_cast<void>(use["v"]); });
    expect_refused(findings, "wrong name of a gradient", {"unit 3 'L3' has no parameter 'L3.w'"},
                   [&] { static_cast<void>(use.gradient("L3.w")); });
    expect_refused(findings, "wrong dtype", {"w", "fp32", "bf16"},
                   [&] { static_cast<void>(use["w"].as<BFloat16>()); });
    expect_refused(findings, "unknown unit", {"unit 4 does not exist; the model has 4 units"},
                   [&] { static_cast<void>(runtime.forward(4)); });
    expect_refused(findings, "no unit", {"does not exist"},
                   [&] { static_cast<void>(runtime.backward(no_unit)); });
    Use again = runtime.forward(2);
    expect_refused(findings, "gradient in a forward",
                   {"the gradient of 'L2.w' was asked for in a forward", "backward"},
                   [&] { static_cast<void>(again.gradient("w")); });
    again.end();
    again.end();  // harmless
    expect_refused(findings, "use after its end", {"this use has ended", "its parameters are gone"},
                   [&] { static_cast<void>(again["w"]); });
    expect_refused(findings, "gradient after its end", {"this use has ended"},
                   [&] { static_cast<void>(again.gradient("w")); });
  });
}

TEST_CASE("the step and the update wait for uses and micro-batches to end") {
  check_in_micro_batch([](D4Trainer& trainer, const Use&) {
    Findings& findings = trainer.findings;
    Runtime& runtime = trainer.runtime;
    expect_refused(findings, "finish_gradients", {"the step cannot end inside a micro-batch"},
                   [&] { runtime.finish_gradients(); });
    expect_refused(findings, "update",
                   {"an update cannot begin while a use is open: backward of unit 'L3'"},
                   [&] { static_cast<void>(runtime.update()); });
    expect_refused(findings, "initialize", {"while a use is open: backward of unit 'L3'"},
                   [&] { runtime.initialize([](ParameterView) {}); });
    expect_refused(findings, "micro-batch", {"cannot begin inside another micro-batch"},
                   [&] { static_cast<void>(runtime.micro_batch()); });
    expect_refused(findings, "optimizer",
                   {"Sgd::step: the gradients are not complete", "call finish_gradients() first"},
                   [&] { Sgd().step(runtime); });
    expect_refused(findings, "optimizer", {"AdamW::step: the gradients are not complete"},
                   [&] { AdamW().step(runtime); });
  });
}

TEST_CASE("nested uses beyond the slots name the open uses and the limit that would do") {
  check_in_micro_batch(
      [](D4Trainer& trainer, const Use&) {
        const Use second = trainer.runtime.forward(1);
        expect_refused(
            trainer.findings, "third use",
            {"recompute of unit 'L2' needs 1 more slot, but of `slots` = 2, 2 are pinned "
             "by open uses: backward of unit 'L3', recompute of unit 'L1'; `slots` = 3 "
             "would do"},
            [&] { static_cast<void>(trainer.runtime.forward(2)); });
        trainer.read(second, 1);
      },
      d4_options(2));
}

TEST_CASE("backwards beyond the gradient slots name who holds them and the limit that would do") {
  check_in_micro_batch(
      [](D4Trainer& trainer, const Use&) {
        expect_refused(trainer.findings, "second backward",
                       {"backward of unit 'L2' needs 1 more gradient slot", "`gradient_slots` = 1",
                        "'L3'", "`gradient_slots` = 2 would do"},
                       [&] { static_cast<void>(trainer.runtime.backward(2)); });
      },
      d4_options(3, 1));
}

TEST_CASE("a frozen parameter has no gradient") {
  Model model = d4_model(1, 64);
  model.add_parameter(0, {.name = "scale", .shape = {3}, .trainable = false});
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, model, {});
          {
            const auto micro_batch = trainer.runtime.micro_batch();
            trainer.forward(0);
            const Use use = trainer.runtime.backward(0);
            expect_refused(findings, "gradient of a frozen parameter",
                           {"'L0.scale' is frozen (trainable is false) and has no gradient"},
                           [&] { static_cast<void>(use.gradient("scale")); });
            trainer.contribute(use, 0, 1.0F);
          }
          trainer.runtime.finish_gradients();
          trainer.optimize();
          trainer.expect_oracle();
        }) == "");
}

TEST_CASE("a fifth stream is refused, and refused uses take no place among the four") {
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          const Model model = d4_model();
          D4Trainer trainer(world, findings, model, d4_options());
          for (int i = 0; i < 6; ++i) {
            HostStream& stream = world.host_device().create_host_stream("refused");
            expect_refused(findings, "use outside a micro-batch", {"outside a micro-batch"},
                           [&] { static_cast<void>(trainer.runtime.forward(0, &stream)); });
          }
          {
            const auto eval = trainer.runtime.eval();
            for (int i = 0; i < 6; ++i) {
              HostStream& stream = world.host_device().create_host_stream("refused");
              expect_refused(findings, "update in eval", {"inside eval"},
                             [&] { static_cast<void>(trainer.runtime.update(&stream)); });
            }
          }
          for (int i = 0; i < 4; ++i) {
            trainer.stream = &world.host_device().create_host_stream("compute");
            trainer.step();
            trainer.wait_for_stream();
          }
          HostStream& fifth = world.host_device().create_host_stream("fifth");
          {
            const auto micro_batch = trainer.runtime.micro_batch();
            expect_refused(findings, "fifth stream",
                           {"a runtime computes on at most 4 streams", "'fifth'"},
                           [&] { static_cast<void>(trainer.runtime.forward(0, &fifth)); });
          }
          expect_refused(findings, "fifth stream of an update", {"at most 4 streams", "'fifth'"},
                         [&] { static_cast<void>(trainer.runtime.update(&fifth)); });
          trainer.step();
          trainer.expect_oracle();
        }) == "");
}

}  // namespace
}  // namespace troupe::test
