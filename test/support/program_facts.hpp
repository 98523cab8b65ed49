/// What a program of the toy asks of a rank, counted from the rules alone: slots in use at once,
/// reduces, and what is gathered ahead of the next step. Never looks at a runtime's decisions.
#pragma once

#include "toy_model.hpp"
#include "troupe/core/bucket_plan.hpp"
#include "troupe/core/memory_plan.hpp"
#include "troupe/core/owners.hpp"
#include "troupe/runtime/options.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace troupe::test {

struct ProgramFacts {
  std::vector<std::uint32_t> pinned_max;   ///< per size class of parameters
  std::vector<std::uint32_t> filling_max;  ///< per size class of gradients
  std::vector<std::uint64_t> reduces;      ///< per bucket
  std::uint64_t uses = 0;                  ///< of units, in training
  std::vector<BucketId> order;             ///< buckets by their first use in training
};

/// Without the uses that `rank` leaves out.
inline MicroBatchProgram program_of(const MicroBatchProgram& program, int rank) {
  MicroBatchProgram own;
  std::vector<bool> open;
  for (const Op& op : program) {
    bool absent = op.absent(rank);
    if (op.kind == Op::begin_forward || op.kind == Op::begin_backward) {
      open.push_back(absent);
    } else if (op.kind == Op::end) {
      absent = open.back();
      open.pop_back();
    }
    if (!absent) {
      own.push_back(op);
    }
  }
  return own;
}

/// Walks one program after the other; `memory` says which bucket is in which class.
class ProgramCounter {
 public:
  ProgramCounter(const BucketPlan& plan, const MemoryPlan& memory) : plan_(plan), memory_(memory) {
    facts_.pinned_max.resize(memory.parameters.classes.size());
    facts_.filling_max.resize(memory.gradients.classes.size());
    facts_.reduces.resize(plan.buckets.size());
  }

  void micro_batch(const MicroBatchProgram& program) {
    buckets_.assign(plan_.buckets.size(), {});
    in_backward_ = false;
    bool in_eval = false;
    std::vector<Op> open;
    for (const Op& op : program) {
      switch (op.kind) {
        case Op::forward:
          begin(op, in_eval);
          end(op);
          break;
        case Op::backward:
          begin(op, false);
          end(op);
          break;
        case Op::begin_forward:
        case Op::begin_backward:
          begin(op, in_eval);
          open.push_back(op);
          break;
        case Op::end:
          end(open.back());
          open.pop_back();
          break;
        case Op::begin_eval:
          in_eval = true;
          break;
        case Op::end_eval:
          in_eval = false;
          break;
        case Op::outside:
        case Op::not_reduced:
          break;
      }
    }
    for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
      facts_.reduces[bucket] += buckets_[bucket].filling ? 1U : 0U;
    }
  }

  const ProgramFacts& facts() const { return facts_; }
  /// Buckets by their first use in the last micro-batch, if all their units were used.
  std::vector<BucketId> order_of_used() const {
    std::vector<BucketId> order = facts_.order;
    std::erase_if(order, [&](BucketId bucket) {
      return buckets_[bucket].forwards < static_cast<int>(plan_.buckets[bucket].units.size());
    });
    return order;
  }

 private:
  struct Progress {
    std::uint32_t uses = 0;
    int forwards = 0;
    int backwards_open = 0;
    int backwards_ended = 0;
    bool filling = false;
  };

  static bool is_backward(const Op& op) {
    return op.kind == Op::backward || op.kind == Op::begin_backward;
  }

  void begin(const Op& op, bool in_eval) {
    in_backward_ = in_backward_ || is_backward(op);
    facts_.uses += in_eval ? 0U : 1U;
    for (const BucketId bucket : plan_.unit_buckets[op.unit]) {
      Progress& at = buckets_[bucket];
      ++at.uses;
      if (!in_eval && std::ranges::count(facts_.order, bucket) == 0) {
        facts_.order.push_back(bucket);
      }
      if (is_backward(op)) {
        ++at.backwards_open;
        at.filling = plan_.buckets[bucket].trainable;
      } else {
        at.forwards += in_eval || in_backward_ ? 0 : 1;
      }
    }
    raise(facts_.pinned_max, memory_.parameters, [](const Progress& at) { return at.uses > 0; });
    raise(facts_.filling_max, memory_.gradients, [](const Progress& at) { return at.filling; });
  }

  void end(const Op& op) {
    for (const BucketId bucket : plan_.unit_buckets[op.unit]) {
      Progress& at = buckets_[bucket];
      --at.uses;
      if (is_backward(op)) {
        --at.backwards_open;
        ++at.backwards_ended;
        if (at.filling && at.backwards_open == 0 && at.backwards_ended >= at.forwards) {
          at.filling = false;
          ++facts_.reduces[bucket];
        }
      }
    }
  }

  template <class Counts>
  void raise(std::vector<std::uint32_t>& most, const SlotPlan& slots, Counts counts) const {
    std::vector<std::uint32_t> now(slots.classes.size());
    for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
      if (slots.class_of[bucket] != SlotPlan::no_class && counts(buckets_[bucket])) {
        ++now[slots.class_of[bucket]];
      }
    }
    for (std::size_t index = 0; index < most.size(); ++index) {
      most[index] = std::max(most[index], now[index]);
    }
  }

  const BucketPlan& plan_;
  const MemoryPlan& memory_;
  ProgramFacts facts_;
  std::vector<Progress> buckets_;
  bool in_backward_ = false;
};

/// The least count of slots that does for all classes whose count `option` sets; nothing if it sets
/// none.
inline std::optional<int> least_count(const SlotPlan& slots,
                                      const std::vector<std::uint32_t>& at_once,
                                      std::string_view option) {
  std::optional<int> least;
  for (std::size_t index = 0; index < slots.classes.size(); ++index) {
    if (slots.classes[index].option == option) {
      const auto count = static_cast<int>(std::max(slots.classes[index].need, at_once[index]));
      least = std::max(least.value_or(1), count);
    }
  }
  return least;
}

inline bool keeps_buffers(const Options& options) {
  return row_of(options.strategy).full_buffer == FullBuffer::stays;
}

struct Plans {
  BucketPlan buckets;
  MemoryPlan memory;
};

/// What a runtime would plan if no count of slots were given.
inline Plans plans_of(const Model& model, const Options& options, int ranks) {
  const DeviceMesh mesh = resolve(options.mesh, ranks).value();
  BucketPlan plan = plan_buckets(model, options.strategy, options.bucket_bytes);
  if (options.strategy == Strategy::owner_broadcast) {
    deal_owners(plan, mesh);
  }
  std::vector<BucketLayout> layouts;
  for (const Bucket& bucket : plan.buckets) {
    std::vector<std::int64_t> numels;
    for (const ParameterId parameter : bucket.parameters) {
      numels.push_back(model.parameters()[parameter].numel);
    }
    const int members = bucket.group == expert_group ? mesh.shard / mesh.ep : mesh.shard;
    layouts.push_back(bucket.owner < 0 ? BucketLayout(numels, members, options.alignment_numel)
                                       : BucketLayout::owned(numels, bucket.owner, members,
                                                             options.alignment_numel));
  }
  MemoryLimits limits{.gradient_dtype = options.gradient_dtype.value_or(options.reduce_dtype),
                      .reduce_dtype = options.reduce_dtype,
                      .keep_gathered = keeps_buffers(options) || !options.reshard_after_forward,
                      .kept_units = {},
                      .keep_gradients = !options.free_full_gradients};
  for (const std::string& unit : options.keep_gathered) {
    limits.kept_units.push_back(model.unit(unit));
  }
  MemoryPlan memory = plan_memory(model, plan, layouts, limits).value();
  return {std::move(plan), std::move(memory)};
}

/// Sets the four limits to the least that does for `steps`, and to as many more as `spare` says.
template <class Spare>
Options with_slots(Options options,
                   const Model& model,
                   int ranks,
                   const std::vector<StepProgram>& steps,
                   Spare spare) {
  const auto [plan, memory] = plans_of(model, options, ranks);
  ProgramCounter counter(plan, memory);
  for (const StepProgram& step : steps) {
    for (const MicroBatchProgram& program : step) {
      counter.micro_batch(program);
    }
  }
  const ProgramFacts& facts = counter.facts();
  const auto count = [&](const SlotPlan& slots, const auto& at_once, std::string_view option) {
    const std::optional<int> least = least_count(slots, at_once, option);
    return least ? std::optional<int>(*least + spare()) : least;
  };
  options.slots = count(memory.parameters, facts.pinned_max, "slots");
  options.outsized_slots = count(memory.parameters, facts.pinned_max, "outsized_slots");
  options.gradient_slots = count(memory.gradients, facts.filling_max, "gradient_slots");
  options.outsized_gradient_slots =
      count(memory.gradients, facts.filling_max, "outsized_gradient_slots");
  return options;
}

/// Slot bytes that frozen buckets hold for good where buckets keep their buffers, once all are
/// gathered.
inline std::int64_t bytes_frozen(const BucketPlan& plan, const MemoryPlan& memory) {
  std::int64_t bytes = 0;
  for (const Bucket& bucket : plan.buckets) {
    const std::uint32_t index = memory.parameters.class_of[bucket.id];
    bytes += bucket.trainable ? 0 : memory.parameters.classes[index].bytes_per_slot;
  }
  return bytes;
}

/// Slot bytes that hold parameters after an update, all slots having been free: the next step's
/// buckets in order, until the depth or a full class stops it.
inline std::int64_t bytes_prefetched(const MemoryPlan& memory, const std::vector<BucketId>& order) {
  std::int64_t bytes = 0;
  int held = 0;
  std::vector<std::uint32_t> taken(memory.parameters.classes.size());
  for (const BucketId bucket : order) {
    const std::uint32_t index = memory.parameters.class_of[bucket];
    const SlotClass& slot_class = memory.parameters.classes[index];
    if (held == memory.prefetch_depth || taken[index] == slot_class.count) {
      break;
    }
    ++held;
    ++taken[index];
    bytes += slot_class.bytes_per_slot;
  }
  return bytes;
}

}  // namespace troupe::test
