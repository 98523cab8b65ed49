/// FailingD4 that do not do what the others do: one that throws, catches, leaves, never comes, uses
/// other units or another order, was given another model. Every rank ends with the same error,
/// which says who and where.
#include "troupe/test/support/failing_d4.hpp"

#include <doctest/doctest.h>

#include <latch>
#include <stdexcept>
#include <thread>

namespace troupe::test {
namespace {

/// Every rank but `except` has heard the text that `run` throws.
void check_heard(const Outcome& outcome, int except = -1) {
  REQUIRE(outcome.failure.has_value());
  for (int rank = 0; rank < static_cast<int>(outcome.heard.size()); ++rank) {
    if (rank != except) {
      CAPTURE(rank);
      CHECK(outcome.heard[static_cast<std::size_t>(rank)] == outcome.text());
    }
  }
}

TEST_CASE("S48: rank 1 throws boom in the forward of unit 2, and every other rank ends with it") {
  FailingD4 ranks;
  const Outcome outcome = ranks.run(4, d4_options(), [](D4Trainer& trainer) {
    const auto micro_batch = trainer.runtime.micro_batch();
    for (UnitId unit = 0; unit < 4; ++unit) {
      const auto use = trainer.runtime.forward(unit);
      if (unit == 2 && trainer.world.rank() == 1) {
        throw std::runtime_error("boom");
      }
    }
    for (UnitId unit = 4; unit-- > 0;) {
      trainer.backward(unit);
    }
  });
  CHECK(outcome.text() == "rank 1 failed at forward of unit 2 'L2': boom");
  CHECK(outcome.failure->rank == 1);
  CHECK(outcome.heard[1] == "boom");
  check_heard(outcome, 1);
  CHECK(outcome.took < std::chrono::seconds{10});  // well before the time limit of collectives
  CHECK(ranks.findings.text().empty());
}

TEST_CASE("of two ranks that throw at once, all but they themselves end with the same one") {
  for (int trial = 0; trial < 50; ++trial) {
    std::latch both(2);
    FailingD4 ranks;
    const Outcome outcome = ranks.run(4, d4_options(), [&](D4Trainer& trainer) {
      const auto micro_batch = trainer.runtime.micro_batch();
      trainer.forward(0);
      if (trainer.world.rank() % 2 == 1) {
        both.arrive_and_wait();
        throw std::runtime_error("boom of " + std::to_string(trainer.world.rank()));
      }
      trainer.world.barrier();
    });
    const int first = outcome.failure.value_or(Failure{}).rank;
    REQUIRE((first == 1 || first == 3));
    CHECK(outcome.text() == "rank " + std::to_string(first) +
                                " failed at a micro-batch, between uses: boom of " +
                                std::to_string(first));
    for (const int rank : {0, 2}) {
      CHECK(outcome.heard[static_cast<std::size_t>(rank)] == outcome.text());
    }
  }
}

TEST_CASE("a trainer that catches its own exception and calls on gets the world's error") {
  FailingD4 ranks;
  const Outcome outcome = ranks.run(3, d4_options(), [](D4Trainer& trainer) {
    const auto micro_batch = trainer.runtime.micro_batch();
    trainer.forward(0);
    try {
      const auto use = trainer.runtime.forward(1);
      if (trainer.world.rank() == 1) {
        throw std::runtime_error("boom");
      }
    } catch (const std::runtime_error& error) {
      if (trainer.world.rank() != 1) {
        throw;  // the world's
      }
      trainer.findings.expect(std::string(error.what()) == "boom", error.what());
    }
    trainer.forward(2);
    trainer.world.barrier();
  });
  CHECK(outcome.text() == "rank 1 failed at forward of unit 1 'L1': an exception was thrown there");
  check_heard(outcome);
  CHECK(ranks.findings.text().empty());
}

TEST_CASE("a trainer that catches the world's error and calls on gets it again, each time") {
  FailingD4 ranks;
  const Outcome outcome = ranks.run(3, d4_options(), [](D4Trainer& trainer) {
    if (trainer.world.rank() == 2) {
      throw std::runtime_error("boom");
    }
    const auto again = [&](const std::function<void()>& call) {
      try {
        call();
        trainer.findings.expect(false, "a call went through after the failure");
      } catch (const Error& error) {
        trainer.findings.expect(std::string(error.what()) == "rank 2 failed: boom", error.what());
      }
    };
    again([&] { trainer.world.barrier(); });
    again([&] { static_cast<void>(trainer.runtime.micro_batch()); });
    again([&] { trainer.runtime.finish_gradients(); });
    again([&] { static_cast<void>(trainer.runtime.update()); });
    again([&] { static_cast<void>(trainer.runtime.full_parameter("L0.w")); });
    again([&] { Runtime(trainer.world, d4_model()); });
  });
  CHECK(outcome.text() == "rank 2 failed: boom");
  CHECK(ranks.findings.text().empty());
}

TEST_CASE("a rank that is in no call hears of a failure all the same, and dumps") {
  FailingD4 ranks;
  const Outcome outcome = ranks.run(3, d4_options(), [](D4Trainer& trainer) {
    trainer.world.barrier();
    if (trainer.world.rank() == 1) {
      throw std::runtime_error("boom");
    }
    const RankActors& actors = trainer.world.context().actors();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds{10};
    while (!actors.failed() && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    trainer.findings.expect(actors.failed(), "nobody has told it");
  });
  CHECK(outcome.text() == "rank 1 failed: boom");
  CHECK(ranks.findings.text() == "");
  CHECK(outcome.logged.size() == 3);
  for (const std::string& text : outcome.logged) {
    CHECK(contains(text, " saw it: rank 1 failed: boom\n  last launches:\n"));
  }
}

TEST_CASE("a rank that catches what unwound its runtime and returns is reported before it waits") {
  // Its prefetches wait for peers, which wait for it at a barrier.
  FailingD4 ranks;
  const Outcome outcome = outcome_of(2, [&](World& world) {
    try {
      D4Trainer trainer(world, ranks.findings, ranks.model, d4_options(4, 2, 3));
      const auto micro_batch = trainer.runtime.micro_batch();
      if (world.rank() == 1) {
        const auto use = trainer.runtime.forward(0);  // prefetches what rank 0 never gathers
        throw std::runtime_error("boom");
      }
      world.barrier();
    } catch (const std::runtime_error&) {
      if (world.rank() == 0) {
        throw;
      }
    }
  });
  CHECK(outcome.text() == "rank 1 failed at forward of unit 0 'L0': an exception was thrown there");
  CHECK(outcome.heard[0] == outcome.text());
  CHECK(outcome.took < std::chrono::seconds{10});  // less than the time limit
}

TEST_CASE("S36: a rank that stops early is named with the step after which it left") {
  for (const int size : {2, 4}) {
    FailingD4 ranks;
    const int leaver = size - 1;
    const Outcome outcome = ranks.run(size, d4_options(), [&](D4Trainer& trainer) {
      for (int step = 0; step < 8; ++step) {
        if (trainer.world.rank() == leaver && step == 5) {
          return;
        }
        trainer.step();
      }
    });
    CHECK(contains(outcome.text(),
                   "rank " + std::to_string(leaver) + " has left the world after step 5"));
    CHECK(outcome.failure->code == ErrorCode::peer_failed);
    CHECK(outcome.failure->rank == leaver);
    check_heard(outcome, leaver);
    CHECK(outcome.heard[static_cast<std::size_t>(leaver)].empty());
    CHECK(outcome.took < std::chrono::seconds{10});
    CHECK(ranks.findings.text().empty());
  }
}

TEST_CASE("a rank that never calls is named when the time is up") {
  constexpr std::chrono::milliseconds timeout{300};
  for (const int size : {2, 3}) {
    std::latch ended(size - 1);
    const Outcome outcome = outcome_of(
        size,
        [&](World& world) {
          if (world.rank() == 1) {
            ended.wait();
            return;
          }
          struct Ended {
            std::latch& latch;
            ~Ended() { latch.count_down(); }
          } const at_end{ended};
          world.barrier();
        },
        timeout);
    CHECK(outcome.failure.value_or(Failure{}).code == ErrorCode::timeout);
    CHECK(outcome.failure.value_or(Failure{}).rank == 1);
    CHECK(contains(outcome.text(),
                   "ms for rank 1: expected barrier 'of the trainer' (ticket 1), "
                   "actual: rank 1 has launched nothing"));
    check_heard(outcome, 1);
    CHECK(outcome.took < timeout + std::chrono::seconds{5});
  }
}

TEST_CASE("ranks that were given another model or other options are named at construction") {
  struct Row {
    const char* text;
    Model model;
    Options options;
  };
  Model frozen = d4_model(3);
  frozen.add_parameter(frozen.add_unit("L3"), {.name = "w", .shape = {1024}, .trainable = false});
  for (const Row& row :
       {Row{"another model", d4_model(5), {}}, Row{"another model", d4_model(4, 1023), {}},
        Row{"another model", frozen, {}}, Row{"other options", d4_model(), {.slots = 2}},
        Row{"other options", d4_model(), {.gradient_slots = 4}},
        Row{"other options", d4_model(), {.prefetch_depth = 0}},
        Row{"other options", d4_model(), {.alignment_numel = 32}},
        Row{"other options", d4_model(), {.reduce_dtype = DType::bf16}},
        Row{"other options", d4_model(), {.gradient_dtype = DType::f32}},
        Row{"other options", d4_model(), {.main_gradient_dtype = DType::bf16}},
        Row{"other options", d4_model(), {.gradient_divisor = 2.0F}}}) {
    const Outcome outcome = outcome_of(3, [&](World& world) {
      const bool other = world.rank() == 2;
      Runtime runtime(world, other ? row.model : d4_model(), other ? row.options : Options{});
    });
    CAPTURE(row.text);
    CHECK(contains(outcome.text(), "rank 2 was given " + std::string(row.text) +
                                       " than rank 0; they have to be the same on all ranks"));
    CHECK(outcome.failure.value_or(Failure{}).code == ErrorCode::bad_configuration);
    CHECK(outcome.failure.value_or(Failure{}).rank == 2);  // whoever noticed
    for (const std::string& heard : outcome.heard) {
      CHECK(contains(heard, "rank 2 was given " + std::string(row.text)));
    }
  }
}

}  // namespace
}  // namespace troupe::test
