/// Random models and programs of the toy, a pure function of a seed: the generator is our own, so
/// that a seed means the same everywhere.
#pragma once

#include "program_check.hpp"
#include "random.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::test {

/// Some units, of bf16 and fp32, trainable and frozen, tied, with parents, perhaps with a root;
/// some parameters of experts if wanted.
inline Model random_model(Random& random, std::uint64_t expert_percent = 0) {
  Model model;
  const std::size_t units = 2 + random.below(5);
  const bool mixed = random.percent(50);
  for (std::size_t u = 0; u < units; ++u) {
    const bool nested = u > 0 && random.percent(20);
    const UnitId unit = model.add_unit("u" + std::to_string(u),
                                       nested ? static_cast<UnitId>(random.below(u)) : no_unit);
    const std::size_t parameters = random.percent(5) ? 0 : 1 + random.below(3);
    for (std::size_t p = 0; p < parameters; ++p) {
      model.add_parameter(unit, {.name = "p" + std::to_string(p),
                                 .shape = {static_cast<std::int64_t>(
                                     random.below(random.of<std::uint64_t>({3, 40, 80})))},
                                 .dtype = mixed && random.percent(40) ? DType::bf16 : DType::f32,
                                 .trainable = !mixed || random.percent(75),
                                 .group = expert_percent > 0 && random.percent(expert_percent)
                                              ? std::string(expert_group)
                                              : std::string()});
    }
  }
  for (std::size_t u = 1; u < units; ++u) {
    const std::size_t owner = random.below(u);
    if (random.percent(20) && !model.units()[owner].parameters.empty()) {
      const std::string name = random.of(model.units()[owner].parameters).name;
      if (name.front() == 'p') {  // not a tie of a tie
        model.tie(static_cast<UnitId>(u), "tied", static_cast<UnitId>(owner), name);
      }
    }
  }
  if (random.percent(30)) {
    model.add_parameter({.name = "root_scale", .shape = {7}});
  }
  return model;
}

/// Programs for a model. Nested uses, repeated and skipped ones, recomputations, eval passes.
class RandomProgram {
 public:
  RandomProgram(Random& random, const Model& model, int ranks)
      : random_(random), model_(model), ranks_(ranks) {}

  MicroBatchProgram micro_batch() {
    program_.clear();
    const int rounds = random_.percent(15) ? 2 : 1;
    for (int round = 0; round < rounds; ++round) {
      std::vector<Op> forwards;
      const bool shuffled = random_.percent(40);
      for (std::size_t i = 0; i < model_.units().size(); ++i) {
        const std::size_t times = random_.percent(10) ? 0 : random_.percent(15) ? 2 : 1;
        for (std::size_t time = 0; time < times && i != model_.root(); ++time) {
          const std::size_t at = shuffled ? random_.below(forwards.size() + 1) : forwards.size();
          forwards.insert(forwards.begin() + static_cast<std::ptrdiff_t>(at), {Op::forward, i});
        }
      }
      std::vector<Op> backwards;
      for (std::size_t i = forwards.size(); i-- > 0;) {
        if (!random_.percent(7)) {
          backwards.push_back({Op::backward, forwards[i].unit});
        }
      }
      within_root(Op::begin_forward, forwards);
      within_root(Op::begin_backward, backwards);
    }
    return program_;
  }

  MicroBatchProgram eval_pass() {
    program_ = {{Op::outside}};
    eval();
    return program_;
  }

 private:
  void within_root(Op::Kind begin, const std::vector<Op>& uses) {
    const bool around = model_.root() != no_unit && random_.percent(80);
    if (around) {
      program_.push_back({begin, model_.root()});
    }
    emit(uses, 0, uses.size(), 0);
    if (around) {
      program_.push_back({Op::end});
    }
  }

  /// uses[first, last): each alone, or open around some of the next ones.
  void emit(const std::vector<Op>& uses, std::size_t first, std::size_t last, int depth) {
    while (first < last) {
      if (random_.percent(4)) {
        eval();
      }
      Op op = uses[first++];
      const UnitId parent = model_.units()[op.unit].parent;
      const bool in_parent = parent != no_unit && random_.percent(60);
      if (in_parent) {
        begin({op.kind == Op::forward ? Op::begin_forward : Op::begin_backward, parent});
      }
      const bool backward = op.kind == Op::backward;
      const bool recomputed = backward && random_.percent(20);
      if (recomputed && random_.percent(50)) {
        program_.push_back({Op::forward, op.unit});  // directly before
      }
      const std::size_t inside =
          depth < 2 && random_.percent(15) ? random_.below(last - first + 1) : 0;
      if (inside > 0 || (recomputed && random_.percent(50))) {
        op.kind = backward ? Op::begin_backward : Op::begin_forward;
      }
      begin(op);
      if (op.kind == Op::begin_backward && recomputed) {
        program_.push_back({Op::forward, op.unit});  // within
      }
      emit(uses, first, first + inside, depth + 1);
      first += inside;
      if (op.kind == Op::begin_forward || op.kind == Op::begin_backward) {
        program_.push_back({Op::end});
      }
      if (in_parent) {
        program_.push_back({Op::end});
      }
    }
  }

  void begin(Op op) {
    if ((op.kind == Op::backward || op.kind == Op::begin_backward) && random_.percent(25)) {
      op.untouched = static_cast<std::uint32_t>(random_.below(8));
      op.untouched_on = random_.percent(50)
                            ? ~0U
                            : static_cast<std::uint32_t>(random_.below(std::size_t{1} << ranks_));
    }
    program_.push_back(op);
  }

  void eval() {
    program_.push_back({Op::begin_eval});
    const std::size_t uses = random_.below(5);
    for (std::size_t use = 0; use < uses; ++use) {
      const std::size_t unit = random_.below(model_.units().size());
      if (random_.percent(20)) {
        program_.push_back({Op::begin_forward, unit});
        program_.push_back({Op::forward, random_.below(model_.units().size())});
        program_.push_back({Op::end});
      } else {
        program_.push_back({Op::forward, unit});
      }
    }
    program_.push_back({Op::end_eval});
  }

  Random& random_;
  const Model& model_;
  int ranks_;
  MicroBatchProgram program_;
};

/// Options with room for the programs, exactly or with some to spare.
inline Options random_options(Random& random,
                              const Model& model,
                              int ranks,
                              const std::vector<StepProgram>& steps) {
  Options options;
  options.alignment_numel = random.of<std::int64_t>({1, 4, 16});
  options.bucket_bytes = random.of<std::int64_t>({0, 0, 128});
  if (random.percent(75)) {
    options.prefetch_depth = static_cast<int>(random.of<int>({0, 1, 2, 5}));
  }
  return with_slots(options, model, ranks, steps,
                    [&] { return static_cast<int>(random.below(3)); });
}

inline ProgramRun random_run(std::uint64_t seed, std::uint64_t expert_percent = 0) {
  Random random(seed);
  ProgramRun run;
  run.model = random_model(random, expert_percent);
  run.ranks = random.of<int>({1, 2, 3, 4, 7});
  RandomProgram programs(random, run.model, run.ranks);
  const std::size_t steps = 2 + random.below(3);
  for (std::size_t step = 0; step < steps; ++step) {
    StepProgram program;
    const std::size_t micro_batches = 1 + random.below(3);
    for (std::size_t batch = 0; batch < micro_batches; ++batch) {
      if (random.percent(15)) {
        program.push_back(programs.eval_pass());
      }
      program.push_back(programs.micro_batch());
    }
    run.steps.push_back(program);
    if (random.percent(40)) {
      run.steps.push_back(program);  // the same order once more: what was learned is used
    }
  }
  run.options = random_options(random, run.model, run.ranks, run.steps);
  run.optimizer = random.percent(50) ? OptimizerKind::sgd : OptimizerKind::adamw;
  run.worker_stream = random.percent(50);
  run.jitter = random.percent(30) ? static_cast<std::uint32_t>(1 + random.below(1000)) : 0;
  return run;
}

}  // namespace troupe::test
