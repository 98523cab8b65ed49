/// Ranks that do not use the same units. What can be reconciled trains like the reference, with the
/// default slots; what cannot ends as one named error on every rank, in bounded time.
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/strategy_random.hpp"

#include <doctest/doctest.h>

#include <array>
#include <functional>

namespace troupe::test {
namespace {

using Ops = MicroBatchProgram;
constexpr auto F = Op::forward;
constexpr auto B = Op::backward;

constexpr std::array agreed_strategies{Strategy::owner_broadcast, Strategy::sharded_optimizer};

/// The plain micro-batch, in which the ranks of `on` leave out `units`.
Ops without(std::initializer_list<std::size_t> units, std::uint32_t on) {
  Ops program = plain_micro_batch(6);
  for (Op& op : program) {
    op.absent_on = std::ranges::find(units, op.unit) != units.end() ? on : 0;
  }
  return program;
}

Model six_units() {
  return toy_model({{37, 5}, {64}, {1, 29, 3}, {50}, {40}, {0, 21}});
}

void check(const Model& model, const std::vector<StepProgram>& steps) {
  for (const Strategy strategy : agreed_strategies) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const bool overlap : {true, false}) {
        ProgramRun run{.model = model, .options = {}, .ranks = ranks, .steps = steps};
        run.options.strategy = strategy;
        run.options.overlap = overlap;
        const std::string complaints = complaints_of(run);
        CHECK_MESSAGE(complaints.empty(), row_of(strategy).name, ", ", ranks, " ranks:\n",
                      complaints);
      }
    }
  }
}

TEST_CASE("rank 0 leaves out units in some steps, the other ranks in others") {
  const Ops plain = plain_micro_batch(6);
  check(six_units(), {{without({4, 5}, 1)},
                      {without({5, 2}, ~1U)},
                      {without({0, 1}, 1), without({3, 4}, ~1U)},
                      {plain, without({3}, 6)},
                      {without({1, 3, 5}, 1), without({0, 2, 4}, 1), plain},
                      {without({1, 3, 5}, ~1U), without({0, 2, 4}, ~1U)}});
}

TEST_CASE("a rank uses no unit for as long as it trains, nor does anybody at first") {
  const Ops idle = without({0, 1, 2, 3, 4, 5}, ~0U);
  for (const std::uint32_t who : {1U, 2U, ~2U}) {
    const Ops program = without({0, 1, 2, 3, 4, 5}, who);
    check(six_units(), {{idle}, {program, program}, {Ops{}}, {program}});
  }
}

TEST_CASE("a unit that is used forward only does not need slots of its own") {
  // The last one: everything waits for it. The first micro-batch leaves other gradients behind.
  const Ops head_only_forward{{F, 0}, {F, 1}, {F, 2}, {F, 3}, {F, 4}, {F, 5},
                              {B, 4}, {B, 3}, {B, 2}, {B, 1}, {B, 0}};
  const Ops two_only_forward{{F, 0}, {F, 1}, {F, 2}, {F, 3}, {F, 4},
                             {F, 5}, {B, 3}, {B, 2}, {B, 0}};
  check(six_units(), {{head_only_forward},
                      {plain_micro_batch(6), head_only_forward},
                      {two_only_forward, two_only_forward}});
}

TEST_CASE("full_shard: a rank that says what it skips takes part with zeros") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const std::uint32_t on : {1U, 2U, 5U, ~0U}) {
      ProgramRun run{.model = six_units(), .options = {}, .ranks = ranks, .steps = {}};
      run.steps = {{without({4, 5}, on)}, {without({5, 2}, ~on), without({0}, on)}};
      CHECK(complaints_of(run) == "");
    }
  }
}

// What cannot be reconciled.

constexpr std::chrono::milliseconds short_timeout{1500};

/// `body` makes the last rank's calls differ. All ranks hear the same error, whose text has `part`.
void check_irreconcilable(const Options& options,
                          std::initializer_list<const char*> any_of,
                          const std::function<void(ToyTrainer&, bool other)>& body) {
  for (const int ranks : {2, 3, 4, 7}) {
    CAPTURE(ranks);
    CAPTURE(std::string(row_of(options.strategy).name));
    const Outcome outcome = outcome_of(
        ranks,
        [&](World& world) {
          Runtime runtime(world, six_units(), options);
          ToyTrainer trainer{runtime, world.rank()};
          trainer.initialize();
          body(trainer, world.rank() == world.size() - 1);
          world.barrier();
        },
        short_timeout);
    REQUIRE(outcome.failure.has_value());
    CHECK(outcome.took < std::chrono::seconds{10});
    const bool named = std::ranges::any_of(
        any_of, [&](const char* part) { return contains(outcome.text(), part); });
    CHECK_MESSAGE(named, outcome.text());
    CHECK(contains(outcome.text(), "rank"));
    for (const std::string& heard : outcome.heard) {
      // A rank that is refused hears that, the world where it was.
      CHECK((heard == outcome.text() || contains(outcome.text(), ": " + heard)));
    }
  }
}

TEST_CASE("another number of micro-batches ends as an error that names both sides") {
  for (const StrategyRow& row : strategies) {
    for (const int more : {-1, 1}) {
      check_irreconcilable({.strategy = row.strategy}, {"launched another collective", "for rank"},
                           [&](ToyTrainer& trainer, bool other) {
                             const int count = 2 + (other ? more : 0);
                             static_cast<void>(trainer.step(plain_step(6, count), 0));
                           });
    }
  }
}

TEST_CASE("another order of backwards with too few gradient slots ends as a mismatch") {
  const Ops plain = plain_micro_batch(6);
  const Ops other{{F, 0}, {F, 1}, {F, 2}, {F, 3}, {F, 4}, {F, 5},
                  {B, 0}, {B, 1}, {B, 2}, {B, 3}, {B, 4}, {B, 5}};
  for (const Strategy strategy : agreed_strategies) {
    check_irreconcilable({.strategy = strategy}, {"launched another collective"},
                         [&](ToyTrainer& trainer, bool differs) {
                           static_cast<void>(trainer.step(StepProgram{differs ? other : plain}, 0));
                         });
    // With a buffer for each gradient it is no difference at all.
    ProgramRun run{.model = six_units(), .options = {}, .ranks = 3, .steps = {}};
    run.options = {.strategy = strategy, .free_full_gradients = false};
    Ops both;
    for (const Op& op : plain) {
      both.push_back(op);
      both.back().absent_on = op.kind == B ? 4 : 0;
    }
    for (const Op& op : other) {
      if (op.kind == B) {
        both.push_back(op);
        both.back().absent_on = 3;
      }
    }
    run.steps = {{both}, {both, plain}};
    CHECK(complaints_of(run) == "");
  }
}

TEST_CASE("full_shard: a rank that leaves out a unit and does not say so is named") {
  for (const std::size_t unit : {std::size_t{0}, std::size_t{3}, std::size_t{5}}) {
    for (const bool overlap : {true, false}) {
      check_irreconcilable({.overlap = overlap}, {"launched another collective", "for rank"},
                           [&](ToyTrainer& trainer, bool other) {
                             Ops program;
                             std::ranges::copy_if(
                                 plain_micro_batch(6), std::back_inserter(program),
                                 [&](const Op& op) { return !other || op.unit != unit; });
                             static_cast<void>(trainer.step({program}, 0));
                           });
    }
  }
}

TEST_CASE("full_shard: a rank that says what it skips at another place is named") {
  check_irreconcilable({.slots = 2, .prefetch_depth = 0},
                       {"launched another collective", "for rank"},
                       [&](ToyTrainer& trainer, bool other) {
                         auto micro_batch = trainer.runtime.micro_batch();
                         for (UnitId unit = 0; unit < 6; ++unit) {
                           trainer.runtime.skip(other ? 5 - unit : unit);
                         }
                       });
}

TEST_CASE("a collective of the trainer's own where ranks differ ends as a mismatch") {
  for (const Strategy strategy : agreed_strategies) {
    check_irreconcilable({.strategy = strategy, .prefetch_depth = 0},
                         {"launched another collective", "for rank"},
                         [&](ToyTrainer& trainer, bool other) {
                           auto micro_batch = trainer.runtime.micro_batch();
                           if (!other) {
                             static_cast<void>(trainer.runtime.forward(3));
                           }
                           std::array<float, 2> values{};
                           trainer.runtime.world().all_reduce(values);
                         });
  }
}

TEST_CASE("a micro-batch whose bucket is reduced already refuses its backward, on that rank") {
  for (const Strategy strategy : agreed_strategies) {
    check_irreconcilable({.strategy = strategy}, {"was reduced already in this micro-batch"},
                         [&](ToyTrainer& trainer, bool other) {
                           const Ops plain = plain_micro_batch(6);
                           Ops again = plain;
                           again.insert(again.end(), plain.begin(), plain.end());
                           static_cast<void>(trainer.step(StepProgram{other ? again : plain}, 0));
                         });
  }
}

/// Every rank draws a program of its own, also other numbers of micro-batches, and collectives
/// anywhere.
void train_at_will(World& world, const ProgramRun& run, std::uint64_t seed) {
  Random random(seed * 64 + static_cast<std::uint64_t>(world.rank()));
  Runtime runtime(world, run.model, run.options);
  ToyTrainer trainer{runtime, world.rank()};
  if (random.percent(50)) {
    trainer.stream = &world.host_device().create_host_stream("compute");
  }
  trainer.before = [&](const Op&) {
    if (random.percent(1)) {
      world.barrier();
    }
  };
  trainer.initialize();
  RandomProgram programs(random, run.model, run.ranks);
  for (int step = 0; step < 2; ++step) {
    StepProgram program;
    do {
      program.push_back(random.percent(10) ? programs.eval_pass() : programs.micro_batch());
    } while (random.percent(15));
    static_cast<void>(trainer.step(program, step));
    Sgd().step(runtime);
  }
}

TEST_CASE("ranks that do whatever they like end alike, well or with one error, but end") {
  int well = 0;
  int refused = 0;
  int different = 0;
  int late = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const ProgramRun run = random_strategy_run(seed, true, 20);
    const Outcome outcome = outcome_of(
        run.ranks, [&](World& world) { train_at_will(world, run, seed); }, short_timeout);
    CAPTURE(seed);
    CHECK(outcome.took < std::chrono::seconds{10});
    if (!outcome.failure) {
      ++well;
      continue;
    }
    const ErrorCode code = outcome.failure->code;
    ++(code == ErrorCode::misuse ? refused : code == ErrorCode::timeout ? late : different);
    CHECK_MESSAGE((code == ErrorCode::misuse || code == ErrorCode::timeout ||
                   code == ErrorCode::mismatch || contains(outcome.text(), "has left the world")),
                  outcome.text());
    for (std::size_t rank = 0; rank < outcome.heard.size(); ++rank) {
      const std::string& heard = outcome.heard[rank];
      // A rank may have ended before; one that is refused hears its own words.
      CHECK_MESSAGE((heard.empty() || contains(outcome.text(), heard) || contains(heard, "unit '")),
                    heard, "\nnot ", outcome.text());
    }
  }
  MESSAGE(well, " well, ", refused, " refused, ", different, " different, ", late, " late");
}

}  // namespace
}  // namespace troupe::test
