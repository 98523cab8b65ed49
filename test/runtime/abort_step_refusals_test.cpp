/// What cannot go on after a step given up: every rank hears the same, named, in bounded time.
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/giving_up.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <latch>
#include <thread>

namespace troupe::test {
namespace {

constexpr std::chrono::milliseconds short_timeout{300};

/// Rank 0 gives the step up, the others hear of it; what comes of it leaves the body. `before` is
/// part of the step.
void give_up_everywhere(Runtime& runtime,
                        World& world,
                        const char* reason,
                        const std::function<void()>& before = {}) {
  try {
    if (before) {
      before();
    }
    if (world.rank() == 0) {
      throw std::runtime_error(reason);
    }
    world.barrier();
  } catch (const std::exception& exception) {
    runtime.abort_step(exception.what());
  }
}

void expect_same_everywhere(const Outcome& outcome, const std::string& text) {
  CHECK(outcome.text() == text);
  for (const std::string& heard : outcome.heard) {
    CHECK(heard == text);
  }
}

TEST_CASE("a scope, use or update that is still open is named, and nothing is changed") {
  CHECK(on_ranks(2, [](World& world, Findings& findings) {
          const Model model = d4_model();
          D4Trainer trainer(world, findings, model, d4_options());
          Runtime& runtime = trainer.runtime;
          const std::string rank = " is still open on rank " + std::to_string(world.rank()) +
                                   "; end the scope first, or let the exception leave it";
          const auto refused = [&](const char* scope) {
            expect_refused(findings, scope, {scope, rank.c_str(), "Runtime::abort_step: "},
                           [&] { runtime.abort_step(); });
          };
          {
            const auto micro_batch = runtime.micro_batch();
            refused("a micro-batch");
            for (UnitId unit = 0; unit < 4; ++unit) {
              const Use use = runtime.forward(unit);
              trainer.read(use, unit);
              if (unit == 1) {
                refused("forward of unit 1 'L1'");
              }
            }
            {
              const auto eval = runtime.eval();
              refused("an eval pass");
            }
            for (UnitId unit = 4; unit-- > 0;) {
              const Use use = runtime.backward(unit);
              trainer.read(use, unit);
              trainer.contribute(use, unit, 1.0F);
              if (unit == 2) {
                refused("backward of unit 2 'L2'");
              }
            }
          }
          runtime.finish_gradients();
          {
            Update update = runtime.update();
            refused("an update");
          }
          trainer.oracle.drop();
          trainer.step();
          trainer.expect_oracle();
        }) == "");
}

TEST_CASE("a rank that never calls it ends the others, named, within the deadline") {
  std::atomic<bool> ended{false};
  const Outcome outcome = outcome_of(
      3,
      [&](World& world) {
        Runtime runtime(world, d4_model());
        runtime.initialize([](ParameterView) {});
        if (world.rank() == 1) {
          while (!ended.load()) {  // computes and computes
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
          }
          world.barrier();
          return;
        }
        try {
          give_up_everywhere(runtime, world, "bad batch");
        } catch (const Error&) {
          ended.store(true);
          throw;
        }
      },
      short_timeout);
  CHECK(contains(outcome.text(),
                 " ms for rank 1 to give up the step, too (Runtime::abort_step); "
                 "what failed first: rank 0 has given up step 1: bad batch"));
  CHECK(outcome.failure->code == ErrorCode::timeout);
  CHECK(outcome.failure->rank == 1);
  CHECK(outcome.heard[0] == outcome.text());
  CHECK(outcome.heard[1] == "rank 0 has given up step 1: bad batch");
  CHECK(outcome.heard[2] == outcome.text());
  CHECK(outcome.took < std::chrono::seconds{10});
}

TEST_CASE("a rank that has left, well or by an exception, is named") {
  for (const bool exception : {false, true}) {
    std::latch initialized(3);
    const Outcome outcome = outcome_of(3, [&](World& world) {
      Runtime runtime(world, d4_model());
      runtime.initialize([](ParameterView) {});
      initialized.arrive_and_wait();
      if (world.rank() == 2 && exception) {
        throw std::runtime_error("no disk");
      }
      if (world.rank() == 2) {
        return;
      }
      give_up_everywhere(runtime, world, "bad batch");
    });
    const std::string left = exception ? "by an exception" : "after step 0";
    CHECK(contains(outcome.text(), "rank 2 has left the world " + left +
                                       "; it did not come to give up the step, too "
                                       "(Runtime::abort_step); what failed first: "));
    CHECK(outcome.heard[0] == outcome.text());
    CHECK(outcome.heard[1] == outcome.text());
    CHECK(outcome.heard[2] == (exception ? "no disk" : ""));
    CHECK(outcome.took < std::chrono::seconds{10});
  }
}

TEST_CASE("ranks that do not stand behind the same update are told so") {
  std::latch updated(3);
  const Outcome outcome = outcome_of(3, [&](World& world) {
    Findings findings;
    const Model model = d4_model();
    D4Trainer trainer(world, findings, model, d4_options());
    trainer.step();
    trainer.micro_batch();
    trainer.runtime.finish_gradients();
    if (world.rank() != 1) {
      trainer.optimize();  // nothing keeps it from that
      updated.count_down();
      try {
        world.barrier();
      } catch (const Error& error) {
        trainer.runtime.abort_step(error.what());
      }
    } else {
      updated.arrive_and_wait();
      trainer.runtime.abort_step("bad loss");
    }
  });
  expect_same_everywhere(
      outcome,
      "the step cannot be given up: ranks do not stand behind the same update (initialisation is "
      "one): 2 on rank 1, 3 on ranks 0 and 2; what failed first: rank 1 has given up step 2: bad "
      "loss");
  CHECK(outcome.failure->rank == 1);
}

TEST_CASE("a rank that was inside an update may have written half of it") {
  const Outcome outcome = outcome_of(3, [](World& world) {
    Runtime runtime(world, d4_model());
    runtime.initialize([](ParameterView) {});
    try {
      if (world.rank() == 2) {
        Update update = runtime.update();
        update.shard(0).weights.front() = 1.0F;
        throw std::runtime_error("bad shard");
      }
      world.barrier();
    } catch (const std::exception& exception) {
      runtime.abort_step(exception.what());
    }
  });
  expect_same_everywhere(outcome,
                         "the step cannot be given up: rank 2: it was inside an update, so its "
                         "shards may be half written; what failed first: rank 2 failed at an "
                         "update: bad shard");
}

TEST_CASE("an update of which nothing was touched is as if it had not been") {
  CHECK(on_ranks(2, [](World& world, Findings& findings) {
          const Model model = d4_model();
          D4Trainer trainer(world, findings, model, d4_options());
          try {
            const Update update = trainer.runtime.update();
            throw std::runtime_error("no learning rate");
          } catch (const std::exception& exception) {
            trainer.runtime.abort_step(exception.what());
          }
          trainer.step();
          trainer.expect_oracle();
        }) == "");
}

TEST_CASE("an update that was dropped with its stream is half an update") {
  std::latch updated(1);
  const Outcome outcome = outcome_of(2, [&](World& world) {
    Runtime runtime(world, d4_model());
    runtime.initialize([](ParameterView) {});
    try {
      if (world.rank() == 1) {
        updated.wait();
        HostStream& stream = world.host_device().create_host_stream("update");
        stream.run([] { throw std::runtime_error("bad kernel"); });
        static_cast<void>(runtime.update(&stream));
      } else {
        static_cast<void>(runtime.update());
        updated.count_down();
      }
      const auto eval = runtime.eval();
      const auto use = runtime.forward(0);
      world.barrier();
    } catch (const std::exception& exception) {
      runtime.abort_step(exception.what());
    }
  });
  CHECK(contains(outcome.text(),
                 "the step cannot be given up: rank 1: it was inside an update, so its shards may "
                 "be half written; what failed first: "));
  CHECK(outcome.heard[0] == outcome.text());
  CHECK(outcome.heard[1] == outcome.text());
}

TEST_CASE("ranks with different numbers of runtimes are told so") {
  const Outcome outcome = outcome_of(3, [](World& world) {
    const Model model = d4_model();
    Runtime runtime(world, model);
    runtime.initialize([](ParameterView) {});
    std::unique_ptr<Runtime> other = std::make_unique<Runtime>(world, model);
    if (world.rank() == 1) {
      other.reset();
    }
    try {
      world.barrier();
      if (world.rank() == 0) {
        throw std::runtime_error("bad batch");
      }
      world.barrier();
    } catch (const std::exception& exception) {
      runtime.abort_step(exception.what());
    }
  });
  expect_same_everywhere(
      outcome,
      "the step cannot be given up: ranks have different numbers of runtimes: 1 on rank 1, 2 on "
      "ranks 0 and 2; what failed first: rank 0 has given up step 1: bad batch");
}

TEST_CASE("a stream that cannot be used again is named") {
  const Outcome outcome = outcome_of(2, [](World& world) {
    Findings findings;
    const Model model = d4_model();
    D4Trainer trainer(world, findings, model, d4_options());
    trainer.stream = &world.host_device().create_host_stream("compute");
    trainer.step();
    trainer.wait_for_stream();
    if (world.rank() == 1) {
      trainer.stream->stop();
    }
    give_up_everywhere(trainer.runtime, world, "bad batch");
  });
  expect_same_everywhere(outcome,
                         "the step cannot be given up: rank 1: stream 'compute' was stopped and "
                         "cannot be used again; what failed first: rank 0 has given up step 2: bad "
                         "batch");
}

TEST_CASE("work on a trainer's stream that does not end is named within the deadline") {
  const Outcome outcome = outcome_of(
      2,
      [](World& world) {
        Findings findings;
        const Model model = d4_model();
        Gate gate;
        D4Trainer trainer(world, findings, model, d4_options());
        trainer.stream = &world.host_device().create_host_stream("compute");
        trainer.step();
        trainer.wait_for_stream();
        if (world.rank() == 1) {
          gate.close(*trainer.stream);
        }
        struct Open {
          Gate& gate;
          ~Open() { gate.open(); }
        } const open{gate};  // before the trainer waits for its stream
        give_up_everywhere(trainer.runtime, world, "bad batch");
      },
      short_timeout);
  expect_same_everywhere(outcome,
                         "the step cannot be given up: rank 1: work on stream 'compute' did not "
                         "end in time; what failed first: rank 0 has given up step 2: bad batch");
  CHECK(outcome.took < std::chrono::seconds{10});
}

TEST_CASE("after that every call throws the same") {
  std::latch stopped(2);
  const Outcome outcome = outcome_of(2, [&](World& world) {
    Runtime runtime(world, d4_model());
    runtime.initialize([](ParameterView) {});
    const auto stop_stream = [&] {
      HostStream* stream =
          world.rank() == 1 ? &world.host_device().create_host_stream("compute") : nullptr;
      const auto eval = runtime.eval();
      const auto use = runtime.forward(0, stream);
      if (stream != nullptr) {
        stream->stop();
      }
      stopped.arrive_and_wait();
    };
    std::string first;
    try {
      give_up_everywhere(runtime, world, "bad batch", stop_stream);
    } catch (const Error& error) {
      first = error.what();
    }
    for (int call = 0; call < 2; ++call) {
      std::string text;
      try {
        call == 0 ? runtime.abort_step() : world.barrier();
      } catch (const Error& error) {
        text = error.what();
      }
      if (text != first) {
        throw std::runtime_error("'" + text + "', not '" + first + "'");
      }
    }
  });
  CHECK(outcome.text() ==
        "the step cannot be given up: rank 1: stream 'compute' was stopped and cannot be used "
        "again; what failed first: rank 0 has given up step 1: bad batch");
  CHECK(outcome.heard == std::vector<std::string>{"", ""});
}

}  // namespace
}  // namespace troupe::test
