/// Random programs under random strategies: what program_random.hpp draws, and the options of all
/// three with their variants; uses that some ranks leave out.
#pragma once

#include "program_random.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::test {

/// A strategy and what it can be combined with in a world of `ranks`; no counts of slots.
inline Options random_strategy(Random& random, const Model& model, int ranks) {
  Options options;
  options.alignment_numel = random.of<std::int64_t>({1, 4, 16});
  options.bucket_bytes = random.of<std::int64_t>({0, 0, 1, 128, 600, 1 << 20});
  options.free_full_gradients = random.percent(70);
  options.overlap = random.percent(80);
  if (options.overlap && random.percent(75)) {
    options.prefetch_depth = random.of<int>({0, 1, 2, 5, 100});
  }
  options.reduce_dtype = random.percent(20) ? DType::bf16 : DType::f32;
  if (random.percent(20)) {
    options.gradient_dtype = random.percent(30) ? DType::bf16 : DType::f32;
  }
  options.main_gradient_dtype = random.percent(10) ? DType::bf16 : DType::f32;
  options.strategy = static_cast<Strategy>(random.below(strategies.size()));
  if (options.strategy != Strategy::owner_broadcast && ranks % 2 == 0 && random.percent(40)) {
    options.mesh.replicate = 2;
    options.sum_replicas_at_step_end = random.percent(50);
  }
  if (options.strategy != Strategy::full_shard) {
    return options;
  }
  const int shard = ranks / options.mesh.replicate;
  switch (random.below(4)) {
    case 0:
      options.reshard_after_forward = false;
      break;
    case 1:
      options.keep_gathered = {random.of(model.units()).name};
      break;
    case 2:
      options.regather_group_size = shard % 2 == 0 ? 2 : shard > 1 ? shard : 0;
      break;
    default:
      break;
  }
  return options;
}

/// Under [Note: the agreed order] a micro-batch reduces a bucket once: leaves out backwards that
/// would be refused on some rank, those without a forward and those behind the last that counts.
inline MicroBatchProgram reduced_once(const MicroBatchProgram& program,
                                      const BucketPlan& plan,
                                      int ranks) {
  struct Progress {
    int forwards = 0;
    int open = 0;
    int ended = 0;
    bool complete = false;
  };
  std::vector<std::vector<Progress>> of_ranks(static_cast<std::size_t>(ranks),
                                              std::vector<Progress>(plan.buckets.size()));
  bool in_eval = false;
  std::vector<bool> in_backward(of_ranks.size());
  const auto end = [&](const Op& op) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (const BucketId bucket : plan.unit_buckets[op.unit]) {
        Progress& at = of_ranks[static_cast<std::size_t>(rank)][bucket];
        if (!op.absent(rank)) {
          --at.open;
          ++at.ended;
          at.complete = at.complete || (at.open == 0 && at.ended >= at.forwards);
        }
      }
    }
  };
  const auto refused = [&](const Op& op) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (const BucketId bucket : plan.unit_buckets[op.unit]) {
        const Progress& at = of_ranks[static_cast<std::size_t>(rank)][bucket];
        if (!op.absent(rank) && plan.buckets[bucket].trainable &&
            (at.complete || at.forwards == 0)) {
          return true;
        }
      }
    }
    return false;
  };
  MicroBatchProgram kept;
  std::vector<std::pair<Op, bool>> open;  // with whether it is kept
  for (const Op& op : program) {
    const bool opens = op.kind == Op::begin_forward || op.kind == Op::begin_backward;
    const bool backward = op.kind == Op::backward || op.kind == Op::begin_backward;
    bool keep = true;
    if (op.kind == Op::end) {
      keep = open.back().second;
      if (keep && open.back().first.kind == Op::begin_backward) {
        end(open.back().first);
      }
      open.pop_back();
    } else if (op.kind == Op::begin_eval || op.kind == Op::end_eval) {
      in_eval = op.kind == Op::begin_eval;
    } else if (backward) {
      keep = !refused(op);
    }
    const bool uses = backward || op.kind == Op::forward || op.kind == Op::begin_forward;
    for (int rank = 0; uses && keep && !in_eval && rank < ranks; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      if (op.absent(rank)) {
        continue;
      }
      in_backward[index] = in_backward[index] || backward;
      for (const BucketId bucket : plan.unit_buckets[op.unit]) {
        Progress& at = of_ranks[index][bucket];
        at.open += backward ? 1 : 0;
        at.forwards += in_backward[index] ? 0 : 1;
      }
    }
    if (opens) {
      open.emplace_back(op, keep);
    } else if (op.kind == Op::backward && keep) {
      end(op);
    }
    if (keep) {
      kept.push_back(op);
    }
  }
  return kept;
}

/// Some units are not used by some ranks, in the whole of a micro-batch.
inline void leave_out_units(
    Random& random, const Model& model, int ranks, bool nested_too, MicroBatchProgram& program) {
  const std::uint64_t all = std::uint64_t{1} << static_cast<unsigned>(ranks);
  const auto is_use = [](const Op& op) {
    return op.kind == Op::forward || op.kind == Op::backward || op.kind == Op::begin_forward ||
           op.kind == Op::begin_backward;
  };
  for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
    const auto on = static_cast<std::uint32_t>(random.below(all));
    if (!random.percent(40)) {
      continue;
    }
    const bool nested = std::ranges::any_of(program, [&](const Op& op) {
      return op.unit == unit && (op.kind == Op::begin_forward || op.kind == Op::begin_backward);
    });
    for (Op& op : program) {
      if (is_use(op) && op.unit == unit && (nested_too || !nested)) {
        op.absent_on = on;
      }
    }
  }
  if (nested_too && random.percent(20)) {  // a rank that uses nothing
    const auto idle = std::uint32_t{1} << random.below(static_cast<std::uint64_t>(ranks));
    for (Op& op : program) {
      op.absent_on |= is_use(op) ? idle : 0U;
    }
  }
}

/// `divergent`: ranks leave out units. `expert_percent`: of parameters, in groups of some size.
inline ProgramRun random_strategy_run(std::uint64_t seed,
                                      bool divergent,
                                      std::uint64_t expert_percent = 0) {
  ProgramRun run = random_run(seed, expert_percent);
  Random random(seed * 7919 + (divergent ? 1 : 0));
  run.options = random_strategy(random, run.model, run.ranks);
  if (const int shard = run.ranks / run.options.mesh.replicate; expert_percent > 0) {
    do {
      run.options.mesh.ep = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(shard)));
    } while (shard % run.options.mesh.ep != 0);
    if (random.percent(30)) {
      run.options.expert_gradient_divisor = 3.0F;
      run.options.gradient_divisor = 5.0F;
    }
  }
  const bool agreed = keeps_buffers(run.options);
  const BucketPlan plan = plans_of(run.model, run.options, run.ranks).buckets;
  for (StepProgram& step : run.steps) {
    for (MicroBatchProgram& program : step) {
      if (divergent) {
        leave_out_units(random, run.model, run.ranks, agreed, program);
      }
      if (agreed) {
        program = reduced_once(program, plan, run.ranks);
      }
    }
  }
  run.own_collectives = random.percent(30);
  if (agreed && divergent) {
    // Ranks that run out of gradient slots at different places cannot be reconciled.
    run.options.gradient_slots =
        run.options.free_full_gradients ? std::optional(100) : std::nullopt;
    run.options.outsized_gradient_slots = run.options.gradient_slots;
  } else {
    run.options = with_slots(run.options, run.model, run.ranks, run.steps,
                             [&] { return static_cast<int>(random.below(3)); });
  }
  return run;
}

}  // namespace troupe::test
