/// Wrong calls between uses: scopes that end too early, updates, optimizers, exports, the world's
/// own collectives, calls from two threads. Refused with a text, and without any effect.
#include "troupe/test/support/d4.hpp"
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <future>
#include <optional>
#include <thread>

namespace troupe::test {
namespace {

/// Runs `misuse` on every rank between two steps and compares everything with the oracle.
void check_between_steps(const std::function<void(D4Trainer&)>& misuse) {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const Model model = d4_model();
    CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, model, d4_options());
            trainer.step();
            misuse(trainer);
            trainer.step();
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("after the step's end parameters are stale until they are updated") {
  const Model model = d4_model();
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          D4Trainer trainer(world, findings, model, d4_options());
          trainer.micro_batch();
          trainer.runtime.finish_gradients();
          {
            const auto micro_batch = trainer.runtime.micro_batch();
            expect_refused(findings, "use before the update",
                           {"forward of unit 'L0'", "not updated since the last step",
                            "call runtime.update() first"},
                           [&] { static_cast<void>(trainer.runtime.forward(0)); });
          }
          trainer.runtime.finish_gradients();  // an empty step: its gradient is zero
          trainer.oracle.contribute(0, -d4_gradient_sum(world.size(), 0));
          trainer.oracle.contribute(1, -d4_gradient_sum(world.size(), 1));
          trainer.oracle.contribute(2, -d4_gradient_sum(world.size(), 2));
          trainer.oracle.contribute(3, -d4_gradient_sum(world.size(), 3));
          trainer.optimize();
          trainer.step();
          trainer.expect_oracle();
        }) == "");
}

TEST_CASE("there is one update at a time, and each bucket is finished once") {
  check_between_steps([](D4Trainer& trainer) {
    Runtime& runtime = trainer.runtime;
    Update update = runtime.update();
    expect_refused(trainer.findings, "second update", {"another update is open; end it first"},
                   [&] { static_cast<void>(runtime.update()); });
    expect_refused(trainer.findings, "initialize inside an update", {"another update is open"},
                   [&] { runtime.initialize([](ParameterView) {}); });
    expect_refused(trainer.findings, "optimizer inside an update", {"another update is open"},
                   [&] { Sgd().step(runtime); });
    expect_refused(trainer.findings, "export inside an update",
                   {"full_parameter('L1.w') inside an update", "end the update first"},
                   [&] { static_cast<void>(runtime.full_parameter("L1.w")); });
    expect_refused(trainer.findings, "shard beyond", {"Update::shard(4): there are 4"},
                   [&] { static_cast<void>(update.shard(4)); });
    update.finish(2);
    expect_refused(trainer.findings, "finish twice", {"Update::finish(2): it was finished already"},
                   [&] { update.finish(2); });
    expect_refused(trainer.findings, "shard after finish",
                   {"Update::shard(2): it was finished already"},
                   [&] { static_cast<void>(update.shard(2)); });
    expect_refused(trainer.findings, "finish beyond", {"Update::finish(9): there are 4"},
                   [&] { update.finish(9); });
  });
}

TEST_CASE("gradients are finished once: a second time would lose them") {
  check_between_steps([](D4Trainer& trainer) {
    const std::uint64_t steps = trainer.runtime.steps();
    expect_refused(trainer.findings, "finish_gradients twice",
                   {"Runtime::finish_gradients: the gradients are finished already",
                    "a micro-batch comes first"},
                   [&] { trainer.runtime.finish_gradients(); });
    trainer.findings.equal(trainer.runtime.steps(), steps, "steps");
  });
}

TEST_CASE("an unknown parameter is named together with what there is") {
  check_between_steps([](D4Trainer& trainer) {
    expect_refused(
        trainer.findings, "unknown parameter", {"L7.w", "L"},
        [&] { static_cast<void>(trainer.runtime.full_parameter("L7.w")); },
        ErrorCode::bad_configuration);
  });
}

TEST_CASE("an optimizer's state lies in the runtime: one AdamW serves several") {
  CHECK(on_ranks(2, [&](World& world, Findings& findings) {
          AdamW optimizer;
          const auto step = [&](Runtime& runtime) {
            {
              const auto micro_batch = runtime.micro_batch();
              const auto use = runtime.backward(0);
              std::ranges::fill(use.gradient("w").as<float>(), 1.0F);
            }
            runtime.finish_gradients();
            optimizer.step(runtime);
          };
          std::optional<Runtime> first;
          first.emplace(world, d4_model(1, 64));
          first->initialize([](ParameterView) {});
          step(*first);
          step(*first);
          {
            Runtime second(world, d4_model(1, 64));
            second.initialize([](ParameterView) {});
            step(second);
            findings.equal(second.counts("adamw.step")[0], std::uint64_t{1}, "steps of the second");
          }
          findings.equal(first->counts("adamw.step")[0], std::uint64_t{2}, "steps of the first");
          findings.equal(first->state("adamw.m", 0).size(), std::size_t{32}, "state of a shard");
          first.emplace(world, d4_model(1, 64));  // perhaps at the same address
          first->initialize([](ParameterView) {});
          step(*first);
          findings.equal(first->counts("adamw.step")[0], std::uint64_t{1}, "steps of a new one");
        }) == "");
}

TEST_CASE("state of a bucket that is not there is refused") {
  CHECK(on_ranks(2, [](World& world, Findings& findings) {
          Runtime runtime(world, d4_model(2, 64));
          expect_refused(findings, "bucket 9", {"Runtime::state('x', 9): there are 2 buckets"},
                         [&] { static_cast<void>(runtime.state("x", 9)); });
        }) == "");
}

TEST_CASE("optimizers may outlive their world") {
  std::vector<AdamW> optimizers(2);
  CHECK(on_ranks(2, [&](World& world, Findings&) {
          Runtime runtime(world, d4_model());
          runtime.initialize([](ParameterView) {});
          {
            const auto micro_batch = runtime.micro_batch();
          }
          runtime.finish_gradients();
          optimizers[static_cast<std::size_t>(world.rank())].step(runtime);
        }) == "");
}

TEST_CASE("a micro-batch or eval that ends around an open use says so in the next call") {
  for (const bool eval : {false, true}) {
    const Outcome outcome = outcome_of(2, [&](World& world) {
      Runtime runtime(world, d4_model());
      runtime.initialize([](ParameterView) {});
      std::optional<Use> use;
      if (eval) {
        const auto scope = runtime.eval();
        use = runtime.forward(0);
      } else {
        const auto scope = runtime.micro_batch();
        use = runtime.forward(0);
      }
      use.reset();
      static_cast<void>(runtime.full_parameter("L0.w"));
    });
    const std::string right = std::string(eval ? "eval" : "the micro-batch") +
                              " cannot end while a use is open: forward of unit 'L0'";
    CHECK(contains(outcome.text(), right));
    for (const std::string& heard : outcome.heard) {
      CHECK(contains(heard, right));
    }
  }
}

TEST_CASE("what the end of a scope could not throw is not lost where no call follows") {
  const Outcome outcome = outcome_of(2, [&](World& world) {
    Runtime runtime(world, d4_model());
    runtime.initialize([](ParameterView) {});
    std::optional<Use> use;
    const auto keep = [&] {
      const auto scope = runtime.micro_batch();
      use = runtime.forward(0);
    };
    keep();
    use.reset();
  });
  CHECK(contains(outcome.text(),
                 "failed: the micro-batch cannot end while a use is open: forward of unit 'L0'"));
  CHECK(outcome.failure.value_or(Failure{}).code == ErrorCode::misuse);
}

TEST_CASE("the world's own collectives refuse a bad root and a wrong size") {
  for (const int ranks : {1, 3}) {
    CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
            std::vector<float> values{1.0F + static_cast<float>(world.rank()), 2.0F};
            std::vector<float> all(values.size() * static_cast<std::size_t>(world.size()));
            const std::string last = "expected 0 to " + std::to_string(world.size() - 1);
            expect_refused(findings, "root -1", {"World::broadcast: root is -1", last.c_str()},
                           [&] { world.broadcast(values, -1); });
            expect_refused(findings, "root beyond", {"World::broadcast: root is", last.c_str()},
                           [&] { world.broadcast(values, world.size()); });
            const std::string right = "world_size · own.size() = " + std::to_string(all.size());
            expect_refused(findings, "size", {"World::all_gather: `all` has", right.c_str()},
                           [&] { world.all_gather(values, std::span(all).first(1)); });
            world.all_gather(values, all);
            for (int rank = 0; rank < world.size(); ++rank) {
              findings.expect(
                  all[static_cast<std::size_t>(2 * rank)] == 1.0F + static_cast<float>(rank),
                  "all_gather after a refusal");
            }
            world.all_reduce(values);
            findings.expect(values[1] == 2.0F * static_cast<float>(world.size()), "all_reduce");
          }) == "");
  }
}

TEST_CASE("of two threads that call for one rank at once, one is refused and the other goes on") {
  std::promise<void> refused;
  std::shared_future<void> seen = refused.get_future().share();
  const std::string found = on_ranks(2, [&](World& world, Findings& findings) {
    if (world.rank() == 1) {
      seen.wait_for(std::chrono::seconds{10});  // rank 0 is inside one of its calls until then
      world.barrier();
      return;
    }
    std::atomic<int> refusals{0};
    const auto call = [&] {
      try {
        world.barrier();
      } catch (const Error& error) {
        findings.expect(error.code() == ErrorCode::misuse &&
                            contains(error.what(),
                                     "rank 0: World::barrier was called while World::barrier is "
                                     "under way on another thread; the calls of a rank form one "
                                     "sequence"),
                        error.what());
        ++refusals;
        refused.set_value();
      }
    };
    std::thread other(call);
    call();
    other.join();
    findings.equal(refusals.load(), 1, "refusals");
  });
  CHECK(found == "");
}

TEST_CASE("a world has 1 to 256 ranks and a time limit that a clock can hold") {
  const auto text_of = [](int ranks, WorldOptions options) -> std::string {
    try {
      static_cast<void>(World::local(ranks, std::move(options)));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_configuration);
      return error.what();
    }
    return {};
  };
  using std::chrono::milliseconds;
  CHECK(text_of(0, {}) == "World::local: ranks is 0; expected 1 to 256");
  CHECK(text_of(257, {}) == "World::local: ranks is 257; expected 1 to 256");
  CHECK(text_of(-1, {}) == "World::local: ranks is -1; expected 1 to 256");
  CHECK(text_of(256, {}).empty());
  for (const milliseconds timeout : {milliseconds{0}, milliseconds{-5}, milliseconds::max()}) {
    CHECK(contains(text_of(2, {.timeout = timeout}), "WorldOptions::timeout is " +
                                                         std::to_string(timeout.count()) +
                                                         " ms; expected more than 0 and at most"));
  }
  CHECK(text_of(2, {.timeout = std::chrono::hours{24 * 365}}).empty());
}

}  // namespace
}  // namespace troupe::test
