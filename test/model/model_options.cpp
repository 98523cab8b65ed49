#include "model_options.hpp"

#include <algorithm>
#include <string>

namespace troupe::test {

bool is_agreed(const Options& options) {
  return options.strategy != Strategy::full_shard;
}

namespace {

/// A divisor of `number`, at least `least`; 0 if there is none.
int random_divisor(Random& random, int number, int least) {
  std::vector<int> divisors;
  for (int divisor = least; divisor <= number; ++divisor) {
    if (number % divisor == 0) {
      divisors.push_back(divisor);
    }
  }
  return divisors.empty() ? 0 : random.of(divisors);
}

void draw_variant(Random& random, const Model& model, int ranks, Options& options) {
  enum Variant { owner_broadcast, sharded_optimizer, kept, units_kept, regathered, replicas };
  const auto variant =
      random.of<Variant>({owner_broadcast, owner_broadcast, sharded_optimizer, sharded_optimizer,
                          kept, units_kept, regathered, regathered, replicas, replicas});
  options.overlap = !random.percent(20);
  const bool replicated = variant == replicas || random.percent(25);
  if (replicated && variant != owner_broadcast && ranks % 2 == 0) {
    options.mesh.replicate = ranks % 4 == 0 && random.percent(20) ? 4 : 2;
    options.sum_replicas_at_step_end = random.percent(40);
  }
  options.free_full_gradients = !random.percent(30);
  if (random.percent(15)) {  // cast in front of each reduce
    options.gradient_dtype = DType::f32;
    options.reduce_dtype = DType::bf16;
  }
  switch (variant) {
    case owner_broadcast:
      options.strategy = Strategy::owner_broadcast;
      options.bucket_bytes = random.of<std::int64_t>({0, 200, 600});
      break;
    case sharded_optimizer:
      options.strategy = Strategy::sharded_optimizer;
      options.bucket_bytes = random.of<std::int64_t>({0, 150, 300, 800});
      break;
    case kept:
      options.reshard_after_forward = false;
      break;
    case units_kept:
      for (const Unit& unit : model.units()) {
        if (unit.id != model.root() && random.percent(40)) {
          options.keep_gathered.push_back(unit.name);
        }
      }
      break;
    case regathered:
      options.regather_group_size = random_divisor(random, ranks / options.mesh.replicate, 2);
      break;
    case replicas:
      break;
  }
}

/// As a runtime plans it before anybody sets a count.
MemoryPlan plan_of(const Model& model, const BucketPlan& plan, int ranks, const Options& options) {
  const int members = ranks / options.mesh.replicate;
  std::vector<BucketLayout> layouts;
  for (const Bucket& bucket : plan.buckets) {
    std::vector<std::int64_t> numels;
    for (const ParameterId parameter : bucket.parameters) {
      numels.push_back(model.parameters()[parameter].numel);
    }
    layouts.push_back(options.strategy == Strategy::owner_broadcast
                          ? BucketLayout::owned(numels, 0, members, options.alignment_numel)
                          : BucketLayout(numels, members, options.alignment_numel));
  }
  MemoryLimits limits{.gradient_dtype = DType::f32,
                      .reduce_dtype = options.reduce_dtype,
                      .keep_gathered = is_agreed(options) || !options.reshard_after_forward,
                      .keep_gradients = !options.free_full_gradients};
  for (const std::string& unit : options.keep_gathered) {
    limits.kept_units.push_back(model.unit(unit));
  }
  return plan_memory(model, plan, layouts, limits).value();
}

/// Where a micro-batch leaves a bucket out, its zeros need a slot at the end, when as many as were
/// used may still be filled.
void count_zeros(const MicroBatchProgram& program,
                 const BucketPlan& plan,
                 const MemoryPlan& memory,
                 std::vector<std::uint32_t>& filling_max) {
  ProgramCounter counter(plan, memory);
  counter.micro_batch(program);
  for (std::size_t index = 0; index < filling_max.size(); ++index) {
    const std::vector<BucketId>& buckets = memory.gradients.classes[index].buckets;
    const auto used = static_cast<std::uint32_t>(std::ranges::count_if(
        buckets, [&](BucketId bucket) { return counter.facts().reduces[bucket] > 0; }));
    if (used < buckets.size()) {
      filling_max[index] = std::max(filling_max[index], used + 1);
    }
  }
}

/// One rank's micro-batch under an agreed order; see `reduces_once`.
class OnceCheck {
 public:
  OnceCheck(const BucketPlan& plan, int rank) : plan_(plan), rank_(rank) {
    buckets_.resize(plan.buckets.size());
  }

  bool holds(const MicroBatchProgram& program) {
    bool in_eval = false;
    std::vector<Op> open;
    for (const Op& op : program) {
      const bool counts = !in_eval && !op.absent(rank_);
      if (op.kind == Op::begin_eval || op.kind == Op::end_eval) {
        in_eval = op.kind == Op::begin_eval;
      } else if (op.kind == Op::begin_forward || op.kind == Op::begin_backward) {
        open.push_back(op);
        begin(op, counts);
      } else if (op.kind == Op::forward || op.kind == Op::backward) {
        begin(op, counts);
        end(op, counts);
      } else if (op.kind == Op::end) {
        end(open.back(), !in_eval && !open.back().absent(rank_));
        open.pop_back();
      }
    }
    return holds_;
  }

 private:
  struct Progress {
    int forwards = 0;
    int backwards_open = 0;
    int backwards_ended = 0;
    bool complete = false;
  };

  static bool is_backward(const Op& op) {
    return op.kind == Op::backward || op.kind == Op::begin_backward;
  }

  void begin(const Op& op, bool counts) {
    if (!counts) {
      return;
    }
    for (const BucketId bucket : plan_.unit_buckets[op.unit]) {
      Progress& at = buckets_[bucket];
      if (!is_backward(op)) {
        at.forwards += in_backward_ ? 0 : 1;
        continue;
      }
      const bool first = at.backwards_open + at.backwards_ended == 0;
      const bool may_be_gone = some_complete_ && first && at.forwards == 0;  // as zeros
      holds_ = holds_ && !(plan_.buckets[bucket].trainable && (at.complete || may_be_gone));
      ++at.backwards_open;
    }
    in_backward_ = in_backward_ || is_backward(op);
  }

  void end(const Op& op, bool counts) {
    if (!counts || !is_backward(op)) {
      return;
    }
    for (const BucketId bucket : plan_.unit_buckets[op.unit]) {
      Progress& at = buckets_[bucket];
      --at.backwards_open;
      ++at.backwards_ended;
      at.complete = at.backwards_open == 0 && at.backwards_ended >= at.forwards;
      some_complete_ = some_complete_ || at.complete;
    }
  }

  const BucketPlan& plan_;
  const int rank_;
  std::vector<Progress> buckets_;
  bool in_backward_ = false;
  bool some_complete_ = false;
  bool holds_ = true;
};

}  // namespace

Options random_strategy(Random& random, const Model& model, int ranks) {
  Options options;
  options.alignment_numel = random.of<std::int64_t>({1, 4, 16});
  options.bucket_bytes = random.of<std::int64_t>({0, 0, 128});
  if (random.percent(50)) {
    draw_variant(random, model, ranks, options);
  }
  if (options.overlap && random.percent(75)) {
    options.prefetch_depth = static_cast<int>(random.of<int>({0, 1, 2, 5}));
  }
  return options;
}

void make_room(Random& random,
               Options& options,
               const Model& model,
               int ranks,
               const std::vector<StepProgram>& steps,
               Differing differing) {
  const BucketPlan plan = plan_buckets(model, options.strategy, options.bucket_bytes);
  const MemoryPlan memory = plan_of(model, plan, ranks, options);
  ProgramCounter counter(plan, memory);
  std::vector<std::uint32_t> zeros_max(memory.gradients.classes.size());
  bool alike = true;  // the ranks' programs
  for (const StepProgram& step : steps) {
    for (const MicroBatchProgram& program : step) {
      counter.micro_batch(program);
      const bool trains = opens_micro_batch(program);
      if (is_agreed(options) && trains) {
        count_zeros(program, plan, memory, zeros_max);
      }
      alike = alike && std::ranges::all_of(program, [](const Op& op) { return op.absent_on == 0; });
    }
  }
  std::vector<std::uint32_t> filling_max = counter.facts().filling_max;
  for (std::size_t index = 0; index < filling_max.size(); ++index) {
    filling_max[index] = std::max(filling_max[index], zeros_max[index]);
    if (is_agreed(options) && !alike && differing == Differing::has_room) {
      filling_max[index] =
          static_cast<std::uint32_t>(memory.gradients.classes[index].buckets.size());
    }
  }
  const auto count = [&](const SlotPlan& slots, const auto& at_once, std::string_view option) {
    const std::optional<int> least = least_count(slots, at_once, option);
    return least ? std::optional<int>(*least + static_cast<int>(random.below(3))) : least;
  };
  const std::vector<std::uint32_t>& pinned_max = counter.facts().pinned_max;
  options.slots = count(memory.parameters, pinned_max, "slots");
  options.outsized_slots = count(memory.parameters, pinned_max, "outsized_slots");
  options.gradient_slots = count(memory.gradients, filling_max, "gradient_slots");
  options.outsized_gradient_slots = count(memory.gradients, filling_max, "outsized_gradient_slots");
}

bool reduces_once(const MicroBatchProgram& program, const BucketPlan& plan, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (!OnceCheck(plan, rank).holds(program)) {
      return false;
    }
  }
  return true;
}

void leave_out(
    Random& random, MicroBatchProgram& program, const Model& model, int ranks, bool agreed) {
  for (const Unit& unit : model.units()) {
    if (!random.percent(30)) {
      continue;
    }
    const auto absent_on =
        static_cast<std::uint32_t>(1 + random.below((std::uint64_t{1} << ranks) - 1));
    for (Op& op : program) {
      const bool alone = op.kind == Op::forward || op.kind == Op::backward;
      const bool around = op.kind == Op::begin_forward || op.kind == Op::begin_backward;
      if (op.unit == unit.id && (alone || (agreed && around))) {
        op.absent_on = absent_on;
      }
    }
  }
}

std::string describe(const Options& options) {
  std::string text = row_of(options.strategy).name;
  text += options.reshard_after_forward ? "" : ", not resharded";
  text += options.keep_gathered.empty() ? "" : ", some units kept";
  text += options.free_full_gradients ? "" : ", gradients kept";
  text += options.reduce_dtype == DType::f32 ? "" : ", reduced in bf16";
  text += options.overlap ? "" : ", no overlap";
  if (options.regather_group_size > 0) {
    text += ", gathered again among " + std::to_string(options.regather_group_size);
  }
  if (options.mesh.replicate > 1) {
    text += ", " + std::to_string(options.mesh.replicate) + " replicas summed " +
            (options.sum_replicas_at_step_end ? "at step end" : "each time");
  }
  return text;
}

}  // namespace troupe::test
