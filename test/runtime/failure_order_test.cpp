/// Ranks that take different branches, and collectives that break: named with rank, ticket and both
/// sides, in bounded time, and no layer ever computes on the data of another bucket.
#include "troupe/test/support/failing_d4.hpp"

#include <doctest/doctest.h>

#include <latch>
#include <stdexcept>

namespace troupe::test {
namespace {

void run_uses(D4Trainer& trainer, const std::vector<UnitId>& order) {
  const auto micro_batch = trainer.runtime.micro_batch();
  for (const UnitId unit : order) {
    trainer.forward(unit);
  }
  for (auto unit = order.rbegin(); unit != order.rend(); ++unit) {
    trainer.backward(*unit);
  }
}

TEST_CASE("S17: ranks that open units in another order are named, and read no wrong data") {
  FailingD4 branches;
  // Without prefetch the first different launch is that of the second forward.
  const Outcome outcome = branches.run(4, d4_options(2, 2, 0), [](D4Trainer& trainer) {
    run_uses(trainer, trainer.world.rank() < 2 ? std::vector<UnitId>{0, 1, 2, 3}
                                               : std::vector<UnitId>{0, 2, 1, 3});
  });
  CHECK(outcome.failure.value_or(Failure{}).code == ErrorCode::mismatch);
  const std::string one =
      "rank 2 launched another collective than ranks 0 and 1 (bucket): expected all_gather of "
      "bucket 1 'L1' (ticket 3), 256 fp32 elements, actual all_gather of bucket 2 'L2' (ticket 3), "
      "256 fp32 elements";
  CHECK(outcome.text() == one);
  CHECK(outcome.failure.value_or(Failure{}).ticket == 3);
  for (const std::string& heard : outcome.heard) {
    CHECK(heard == outcome.text());
  }
  CHECK(branches.findings.text().empty());
}

TEST_CASE("S17: with any slots and depth, another order is named or does no harm") {
  for (const int slots : {1, 2, 3, 4}) {
    for (const int depth : {0, 1, 2, 3}) {
      for (const bool worker : {false, true}) {
        CAPTURE(slots);
        CAPTURE(depth);
        FailingD4 branches;
        const Outcome outcome =
            branches.run(4, d4_options(slots, 2, depth), [&](D4Trainer& trainer) {
              trainer.stream =
                  worker ? &trainer.world.host_device().create_host_stream("compute") : nullptr;
              for (int step = 0; step < 3; ++step) {
                run_uses(trainer, trainer.world.rank() < 2 ? std::vector<UnitId>{0, 1, 2, 3}
                                                           : std::vector<UnitId>{0, 2, 1, 3});
                trainer.runtime.finish_gradients();
                trainer.optimize();
              }
            });
        CHECK(outcome.failure.value_or(Failure{}).code == ErrorCode::mismatch);
        CHECK(contains(outcome.text(), "rank 2 launched another collective than ranks 0 and 1"));
        for (const std::string& heard : outcome.heard) {
          CHECK(heard == outcome.text());
        }
        CHECK(branches.findings.text().empty());
        CHECK(outcome.took < std::chrono::seconds{10});
      }
    }
  }
}

TEST_CASE("S25, S32: a unit used on some ranks only ends all ranks within the time limit") {
  constexpr std::chrono::milliseconds timeout{500};
  for (UnitId absent = 0; absent < 4; ++absent) {
    for (const int slots : {2, 4}) {
      CAPTURE(absent);
      CAPTURE(slots);
      FailingD4 branches;
      const Outcome outcome = branches.run(
          4, d4_options(slots),
          [&](D4Trainer& trainer) {
            std::vector<UnitId> order{0, 1, 2, 3};
            if (trainer.world.rank() >= 2) {
              std::erase(order, absent);
            }
            for (int step = 0; step < 2; ++step) {
              run_uses(trainer, order);
              trainer.runtime.finish_gradients();
              trainer.optimize();
            }
          },
          timeout);
      // Either the ranks meet with different collectives, or each half waits for the other.
      REQUIRE(outcome.failure.has_value());
      CHECK((outcome.failure->code == ErrorCode::mismatch ||
             outcome.failure->code == ErrorCode::timeout));
      CHECK(contains(outcome.text(), "expected "));
      CHECK(contains(outcome.text(), "actual"));
      CHECK(contains(outcome.text(), "bucket"));
      for (const std::string& heard : outcome.heard) {
        CHECK(heard == outcome.text());
      }
      CHECK(branches.findings.text().empty());
      CHECK(outcome.took < timeout + std::chrono::seconds{5});
    }
  }
}

TEST_CASE("S18: expected and actual differ as strings, whichever way the calls differ") {
  struct Row {
    const char* what;
    std::function<void(World&)> usual, other;
    const char* named;
  };
  std::array<float, 12> values{};
  const std::span<float> eight(values.data(), 8);
  const std::span<float> nine(values.data(), 9);
  const std::vector<Row> rows{
      {"other operation",
       [&](World& w) {
         auto v = values;
         w.all_reduce({v.data(), 8});
       },
       [&](World& w) {
         auto v = values;
         w.broadcast({v.data(), 8}, 0);
       },
       "(operation)"},
      {"other size",
       [&](World& w) {
         auto v = values;
         w.all_reduce({v.data(), 8});
       },
       [&](World& w) {
         auto v = values;
         w.all_reduce({v.data(), 9});
       },
       "(size)"},
      {"other root",
       [&](World& w) {
         auto v = values;
         w.broadcast({v.data(), 8}, 0);
       },
       [&](World& w) {
         auto v = values;
         w.broadcast({v.data(), 8}, 1);
       },
       "(root)"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const Outcome outcome = outcome_of(3, [&](World& world) {
      world.barrier();
      (world.rank() == 2 ? row.other : row.usual)(world);
    });
    CHECK(outcome.failure.value_or(Failure{}).code == ErrorCode::mismatch);
    const std::string text = outcome.text();
    CHECK(contains(
        text, "rank 2 launched another collective than ranks 0 and 1 " + std::string(row.named)));
    const std::size_t expected = text.find("expected ") + 9;
    const std::size_t actual = text.find(", actual ");
    REQUIRE(actual != std::string::npos);
    CHECK(contains(text, "(ticket 2)"));
    CHECK(text.substr(expected, actual - expected) != text.substr(actual + 9));
  }
  CHECK(eight.size() + 1 == nine.size());
}

TEST_CASE("S18: a missing launch is named as such, and so is one too many") {
  for (const bool missing : {true, false}) {
    const Outcome outcome = outcome_of(3, [&](World& world) {
      world.barrier();
      if ((world.rank() == 2) != missing) {
        world.barrier();
      }
    });
    CHECK(outcome.failure.value_or(Failure{}).code == ErrorCode::peer_failed);
    const std::string gone = missing ? "2" : outcome.failure->rank == 0 ? "0" : "1";
    CHECK(outcome.text() == "barrier 'of the trainer' (ticket 2) waits for rank " + gone +
                                ", which has left: rank " + gone +
                                " has left the world after step 0");
  }
}

TEST_CASE("a failure on the stream of a collective ends every rank with its text") {
  for (const char* name : {"gather", "reduce"}) {
    for (const int size : {1, 2, 3, 4, 7}) {
      CAPTURE(name);
      CAPTURE(size);
      FailingD4 branches;
      const Outcome outcome = branches.run(size, d4_options(), [&](D4Trainer& trainer) {
        trainer.step();
        if (trainer.world.rank() == size - 1) {
          stream_of(trainer.world, name).run([] { throw std::runtime_error("planted"); });
        }
        trainer.step();
        trainer.step();
      });
      // Found by the collective that it stops, or at the end of the one before.
      const std::string culprit = "rank " + std::to_string(size - 1);
      CHECK((contains(outcome.text(), culprit + " dropped ") ||
             contains(outcome.text(), culprit + ": ")));
      CHECK(contains(outcome.text(), "stream '" + std::string(name) + "': planted"));
      for (const std::string& heard : outcome.heard) {
        CHECK(heard == outcome.text());
      }
      CHECK(branches.findings.text().empty());
      CHECK(outcome.took < std::chrono::seconds{10});
    }
  }
}

TEST_CASE(
    "S47: a rank dies in a gather while a reduce is pending; the others leave, nothing stays") {
  const std::ptrdiff_t threads = thread_count();
  FailingD4 branches;
  const Outcome outcome = branches.run(4, d4_options(4), [](D4Trainer& trainer) {
    Gate gate;
    if (trainer.world.rank() == 2) {
      gate.close(stream_of(trainer.world, "reduce"));  // its part of the reduce does not begin
    }
    const auto micro_batch = trainer.runtime.micro_batch();
    for (UnitId unit = 0; unit < 4; ++unit) {
      trainer.forward(unit);
    }
    trainer.backward(3);  // its reduce is pending on every rank
    HostStream& gather = stream_of(trainer.world, "gather");
    if (trainer.world.rank() == 2) {
      gather.run([] { throw std::runtime_error("died in a gather"); });
    }
    static_cast<void>(trainer.runtime.full_parameter("L0.w"));
  });
  CHECK(outcome.failure.value_or(Failure{}).rank == 2);
  CHECK(contains(outcome.text(), "died in a gather"));
  for (const std::string& heard : outcome.heard) {
    CHECK(heard == outcome.text());
  }
  CHECK(outcome.took < std::chrono::seconds{10});
  CHECK(thread_count() == threads);
}

TEST_CASE("a failure from outside ends ranks wherever they wait") {
  // All of them wait in different calls; one hears of it from the inside of the actors.
  std::latch reached(3);
  FailingD4 branches;
  const Outcome outcome = branches.run(3, d4_options(), [&](D4Trainer& trainer) {
    trainer.step();
    reached.arrive_and_wait();
    switch (trainer.world.rank()) {
      case 0:
        trainer.world.context().actors().fail(
            {.code = ErrorCode::device, .text = "planted", .rank = 0});
        trainer.world.barrier();
        break;
      case 1:
        trainer.world.barrier();
        break;
      default:
        static_cast<void>(trainer.runtime.full_parameter("L1.w"));
    }
  });
  CHECK(outcome.text() == "planted");
  for (const std::string& heard : outcome.heard) {
    CHECK(heard == "planted");
  }
}

}  // namespace
}  // namespace troupe::test
