/// Two models in one process and one world, of the same or of different strategies, interleaved on
/// one sequence of tickets: each trains as it would alone.
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/ranks.hpp"
#include "troupe/test/support/strategy_random.hpp"

#include <doctest/doctest.h>

#include <array>
#include <deque>
#include <memory>
#include <optional>

namespace troupe::test {
namespace {

constexpr int steps_each = 3;

/// One model's training, an event at a time.
class Trainee {
 public:
  Trainee(World& world,
          const Model& model,
          const Options& options,
          const MicroBatchProgram& program)
      : runtime_(world, model, options), trainer_{runtime_, world.rank()}, program_(program) {
    trainer_.initialize();
  }

  bool done() const { return step_ == steps_each; }
  Runtime& runtime() { return runtime_; }

  /// The next use, or what ends a step.
  void advance() {
    if (at_ == 0) {
      micro_batch_.emplace(runtime_.micro_batch());
      activations_ = {};
    }
    if (at_ < program_.size()) {
      use(program_[at_++]);
    } else if (at_++ == program_.size()) {
      micro_batch_.reset();
    } else if (at_ == program_.size() + 2) {
      runtime_.finish_gradients();
      optimizer_.step(runtime_);
      ++step_;
      at_ = 0;
    }
  }

 private:
  void use(const Op& op) {
    const bool backward = op.kind == Op::backward;
    const auto unit = static_cast<UnitId>(op.unit);
    const Data data{runtime_.world().rank(), step_, 0};
    const Use use = backward ? runtime_.backward(unit) : runtime_.forward(unit);
    std::vector<std::vector<float>> values;
    const auto& parameters = runtime_.model().units()[unit].parameters;
    for (const UnitParameter& each : parameters) {
      values.push_back(widened(use[each.name]));
    }
    if (!backward) {
      const std::vector<std::span<const float>> spans(values.begin(), values.end());
      activations_.forward(data, op.unit, spans);
      return;
    }
    std::size_t i = 0;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const GradientView gradient = use.gradient(parameters[p].name);
      for (std::size_t j = 0; j < values[p].size(); ++j, ++i) {
        float& out = gradient.as<float>()[j];
        const float g = activations_.gradient(data, op.unit, i, values[p][j]);
        out = gradient.accumulate ? out + g : g;
      }
    }
    activations_.backward_done(op.unit);
  }

  Runtime runtime_;
  ToyTrainer trainer_;
  ToyOptimizer optimizer_{OptimizerKind::adamw};
  const MicroBatchProgram& program_;
  std::optional<MicroBatch> micro_batch_;
  Activations activations_;
  std::size_t at_ = 0;
  int step_ = 0;
};

struct Models {
  std::array<Model, 2> model{toy_model({{37, 5}, {64}, {1, 29, 3}, {50}}),
                             toy_model({{8}, {90, 1}, {33}}, DType::bf16)};
  std::array<MicroBatchProgram, 2> program{plain_micro_batch(4), plain_micro_batch(3)};
  std::array<Options, 2> options;

  std::array<ReferenceResult, 2> expected(int ranks) const {
    std::array<ReferenceResult, 2> results;
    for (std::size_t i = 0; i < 2; ++i) {
      const std::vector<StepProgram> steps(steps_each, StepProgram{program[i]});
      results[i] =
          Reference(model[i], ranks, OptimizerKind::adamw, sum_order(options[i])).train(steps);
    }
    return results;
  }
};

std::vector<Models> pairs() {
  std::vector<Models> all;
  for (const StrategyRow& first : strategies) {
    for (const StrategyRow& second : strategies) {
      for (const bool overlap : {true, false}) {
        Models models;
        models.options[0] = {.strategy = first.strategy};
        models.options[1] = {.strategy = second.strategy, .overlap = overlap};
        all.push_back(models);
      }
    }
  }
  return all;
}

std::string name_of(const Models& models) {
  return std::string(row_of(models.options[0].strategy).name) + " and " +
         row_of(models.options[1].strategy).name;
}

void expect_trained(Findings& findings, Trainee& trainee, const ReferenceResult& expected) {
  for (const auto& [name, values] : expected.parameters) {
    findings.expect(trainee.runtime().full_parameter(name) == values, name + " differs");
  }
}

TEST_CASE("two runtimes that are interleaved at random train as each does alone") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const Models& models : pairs()) {
      const auto expected = models.expected(ranks);
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        CAPTURE(name_of(models));
        CAPTURE(ranks);
        CAPTURE(seed);
        LaunchLog launches(ranks);
        CHECK(on_ranks(
                  ranks,
                  [&](World& world, Findings& findings) {
                    Random random(seed);  // the same on all ranks
                    std::array<std::unique_ptr<Trainee>, 2> both;
                    for (std::size_t i = 0; i < 2; ++i) {
                      both[i] = std::make_unique<Trainee>(world, models.model[i], models.options[i],
                                                          models.program[i]);
                    }
                    while (!both[0]->done() || !both[1]->done()) {
                      Trainee& next = *both[random.below(2)];
                      if (!next.done()) {
                        next.advance();
                      }
                    }
                    for (std::size_t i = 0; i < 2; ++i) {
                      expect_trained(findings, *both[i], expected[i]);
                    }
                    // What each holds, for good or for a time, is its own.
                    for (std::size_t i = 0; i < 2; ++i) {
                      const Runtime& runtime = both[i]->runtime();
                      const MemoryReport memory = runtime.report().memory;
                      findings.expect(
                          memory.unsharded_peak > 0 &&
                              memory.unsharded_peak <= runtime.memory_plan().parameters.bytes,
                          "most held of parameters");
                      findings.expect(
                          memory.gradients_peak > 0 &&
                              memory.gradients_peak <= runtime.memory_plan().gradients.bytes,
                          "most held of gradients");
                      findings.equal(memory.parameter_slots, runtime.memory_plan().parameters.bytes,
                                     "parameter slots");
                      findings.equal(memory.gradient_slots, runtime.memory_plan().gradients.bytes,
                                     "gradient slots");
                    }
                    findings.equal(both[0]->runtime().report().steps, 3U, "steps");
                  },
                  &launches) == "");
        CHECK(launches.same_on_all_ranks());
      }
    }
  }
}

TEST_CASE("each of two runtimes reports the most that it held itself") {
  for (const Models& models : pairs()) {
    CAPTURE(name_of(models));
    std::array<MemoryReport, 2> alone;
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(on_ranks(2, [&](World& world, Findings&) {
              Trainee trainee(world, models.model[i], models.options[i], models.program[i]);
              while (!trainee.done()) {
                trainee.advance();
              }
              if (world.rank() == 0) {
                alone[i] = trainee.runtime().report().memory;
              }
            }) == "");
    }
    CHECK(on_ranks(2, [&](World& world, Findings& findings) {
            Trainee first(world, models.model[0], models.options[0], models.program[0]);
            Trainee second(world, models.model[1], models.options[1], models.program[1]);
            while (!first.done() || !second.done()) {
              for (Trainee* each : {&first, &second}) {
                if (!each->done()) {
                  each->advance();
                }
              }
            }
            const std::array<MemoryReport, 2> together{first.runtime().report().memory,
                                                       second.runtime().report().memory};
            for (std::size_t i = 0; i < 2; ++i) {
              findings.equal(together[i].unsharded_peak, alone[i].unsharded_peak, "parameters");
              findings.equal(together[i].gradients_peak, alone[i].gradients_peak, "gradients");
            }
            const std::int64_t both = world.device().counters().unsharded_bytes_peak.load();
            findings.expect(both > together[0].unsharded_peak, "the device counts both");
          }) == "");
  }
}

TEST_CASE("a runtime that ends while the other trains leaves it alone, and gives its memory back") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Models& models : pairs()) {
      const auto expected = models.expected(ranks);
      CAPTURE(name_of(models));
      CAPTURE(ranks);
      LaunchLog launches(ranks);
      CHECK(on_ranks(
                ranks,
                [&](World& world, Findings& findings) {
                  Trainee stays(world, models.model[0], models.options[0], models.program[0]);
                  const auto advance = [&](int events) {
                    for (int event = 0; event < events && !stays.done(); ++event) {
                      stays.advance();
                    }
                  };
                  for (int turn = 0; turn < 3; ++turn) {
                    const DeviceCounters& counters = world.device().counters();
                    const std::int64_t held = counters.allocations - counters.frees;
                    Trainee goes(world, models.model[1], models.options[1], models.program[1]);
                    advance(3);
                    while (!goes.done()) {
                      goes.advance();
                    }
                    expect_trained(findings, goes, expected[1]);
                    findings.expect(counters.allocations - counters.frees > held, "no memory");
                  }
                  advance(1000);
                  expect_trained(findings, stays, expected[0]);
                },
                &launches) == "");
      CHECK(launches.same_on_all_ranks());
    }
  }
}

TEST_CASE("ranks that interleave two runtimes differently are told which runtime") {
  for (Models models : pairs()) {
    if (!models.options[1].overlap) {
      continue;
    }
    for (const bool ahead : {false, true}) {
      for (Options& options : models.options) {
        options.prefetch_depth = ahead ? std::nullopt : std::optional(0);
      }
      CAPTURE(name_of(models));
      CAPTURE(ahead);
      const Outcome outcome = outcome_of(
          3,
          [&](World& world) {
            Trainee first(world, models.model[0], models.options[0], models.program[0]);
            Trainee second(world, models.model[1], models.options[1], models.program[1]);
            const bool other = world.rank() == 1;
            for (Trainee* each : {other ? &second : &first, other ? &first : &second}) {
              while (!each->done()) {
                each->advance();
              }
            }
          },
          std::chrono::milliseconds{1000});
      REQUIRE(outcome.failure.has_value());
      // With everything gathered ahead, the next collectives are on different channels: nobody
      // meets, and the time limit tells.
      const ErrorCode code = outcome.failure->code;
      CHECK((code == ErrorCode::mismatch || (ahead && code == ErrorCode::timeout)));
      CHECK_MESSAGE(contains(outcome.text(), ahead ? "rank" : "runtime"), outcome.text());
      CHECK(outcome.took < std::chrono::seconds{10});
      for (const std::string& heard : outcome.heard) {
        CHECK(heard == outcome.text());
      }
    }
  }
}

}  // namespace
}  // namespace troupe::test
