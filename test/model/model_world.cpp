#include "model_world.hpp"

#include <algorithm>

namespace troupe::test {

const char* to_string(PlannedFault::Kind kind) {
  switch (kind) {
    case PlannedFault::Kind::none:
      return "no fault";
    case PlannedFault::Kind::collective_error:
      return "an error in a collective";
    case PlannedFault::Kind::collective_hang:
      return "a collective that hangs";
    case PlannedFault::Kind::device_error:
      return "a device error";
    case PlannedFault::Kind::exception:
      return "an exception of the trainer";
    case PlannedFault::Kind::death:
      return "the death of a rank";
    case PlannedFault::Kind::haste:
      return "deadlines while devices are slow";
    case PlannedFault::Kind::disagreement:
      return "a disagreement";
  }
  return "?";
}

std::string ModelWorld::text() const {
  const BucketPlan plan = plan_buckets(model, options.strategy, options.bucket_bytes);
  std::string text = std::to_string(ranks) + " ranks, " + std::to_string(model.units().size()) +
                     " units, " + std::to_string(plan.buckets.size()) + " buckets, " +
                     std::to_string(steps.size()) + " steps, " + describe(options) + ", depth " +
                     (options.prefetch_depth ? std::to_string(*options.prefetch_depth) : "default");
  text += !worker_stream ? ", computes on its thread"
          : two_streams  ? ", computes on two streams"
                         : ", computes on a stream";
  text += worker_update ? ", updates on a stream, " : ", ";
  text += to_string(fault.kind);
  if (fault.kind != PlannedFault::Kind::none && fault.kind != PlannedFault::Kind::haste) {
    text += " (rank " + std::to_string(fault.rank) + ", number " + std::to_string(fault.at) + ")";
  }
  text += ranks_differ() ? ", ranks leave units out" : "";
  const auto accumulates = [](const StepProgram& step) {
    return !std::ranges::all_of(step, [](const MicroBatchProgram& each) { return reduces(each); });
  };
  text += std::ranges::any_of(steps, accumulates) ? ", not each micro-batch reduces" : "";
  for (const GivenUp& each : given_up) {
    text += ", rank " + std::to_string(each.rank) + " gives up step " + std::to_string(each.step) +
            (each.inside ? " in" : " before") + " operation " + std::to_string(each.at);
  }
  for (std::size_t step = 0; step < overflow_rank.size(); ++step) {
    text += step == 0 ? ", gradients are measured" : "";
    text += overflows(step) ? ", rank " + std::to_string(overflow_rank[step]) +
                                  " overflows in step " + std::to_string(step)
                            : "";
  }
  return second != nullptr ? text + "\n    second: " + second->text() : text;
}

bool ModelWorld::values_known() const {
  return fault.kind != PlannedFault::Kind::disagreement || is_agreed(options) || !ranks_differ();
}

bool ModelWorld::gives_up(std::size_t step) const {
  return std::ranges::any_of(given_up, [&](const GivenUp& each) { return each.step == step; });
}

bool ModelWorld::overflows(std::size_t step) const {
  const int rank = overflow_rank.empty() ? -1 : overflow_rank[step];
  const auto contributes = [&](const Op& op) {
    if ((op.kind != Op::backward && op.kind != Op::begin_backward) || op.absent(rank)) {
      return false;
    }
    std::size_t index = 0;
    return std::ranges::any_of(model.units()[op.unit].parameters, [&](const UnitParameter& each) {
      const Parameter& parameter = model.parameters()[each.parameter];
      return op.touches(index++, rank) && parameter.spec.trainable && parameter.numel > 0;
    });
  };
  return rank >= 0 && std::ranges::any_of(steps[step], [&](const MicroBatchProgram& program) {
           return std::ranges::any_of(program, contributes);
         });
}

bool ModelWorld::ranks_differ() const {
  const auto differs = [](const MicroBatchProgram& program) {
    return std::ranges::any_of(program, [](const Op& op) { return op.absent_on != 0; });
  };
  return std::ranges::any_of(
      steps, [&](const StepProgram& step) { return std::ranges::any_of(step, differs); });
}

namespace {

PlannedFault random_fault(Random& random, int ranks) {
  using Kind = PlannedFault::Kind;
  if (!random.percent(30)) {
    return {};
  }
  PlannedFault fault;
  fault.kind = random.of<Kind>({Kind::collective_error, Kind::collective_hang, Kind::device_error,
                                Kind::exception, Kind::death, Kind::haste, Kind::disagreement});
  fault.rank = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
  fault.at = random.below(random.of<std::uint64_t>({3, 20, 60}));
  return fault;
}

/// A model and a strategy for it, of no more buckets than a quick world has.
void draw_model(Random& random, ModelWorld& world) {
  constexpr std::size_t buckets_max = 12;
  const auto buckets = [&] {
    return plan_buckets(world.model, world.options.strategy, world.options.bucket_bytes)
        .buckets.size();
  };
  do {
    world.model = random_model(random);
    world.options = random_strategy(random, world.model, world.ranks);
  } while (buckets() > buckets_max);
}

/// One that the strategy can run.
MicroBatchProgram random_micro_batch(Random& random,
                                     RandomProgram& programs,
                                     const ModelWorld& world,
                                     bool ranks_differ) {
  constexpr int attempts = 20;
  const BucketPlan plan =
      plan_buckets(world.model, world.options.strategy, world.options.bucket_bytes);
  const bool agreed = is_agreed(world.options);
  for (int attempt = 0; attempt < attempts; ++attempt) {
    MicroBatchProgram program = programs.micro_batch();
    if (ranks_differ) {
      leave_out(random, program, world.model, world.ranks, agreed);
    }
    if (!agreed || reduces_once(program, plan, world.ranks)) {
      return program;
    }
  }
  return plain_micro_batch(world.model.units().size());
}

void draw_steps(Random& random, ModelWorld& world) {
  constexpr std::size_t steps_max = 3;
  RandomProgram programs(random, world.model, world.ranks);
  const std::size_t steps = 1 + random.below(steps_max);
  const bool disagreement = world.fault.kind == PlannedFault::Kind::disagreement;
  const bool ranks_differ = random.percent(disagreement ? 75 : 25);
  while (world.steps.size() < steps) {
    StepProgram program;
    const bool accumulates = !world.options.free_full_gradients && random.percent(75);
    const std::size_t micro_batches = 1 + random.below(accumulates ? 4 : 2);
    for (std::size_t batch = 0; batch < micro_batches; ++batch) {
      if (random.percent(10)) {
        program.push_back(programs.eval_pass());
      }
      program.push_back(random_micro_batch(random, programs, world, ranks_differ));
      if (accumulates && random.percent(60)) {
        program.back().insert(program.back().begin(), {Op::not_reduced});
      }
    }
    if (random.percent(10)) {
      program.push_back(programs.eval_pass());  // nothing waits for it but the update
    }
    world.steps.push_back(program);
    if (world.steps.size() < steps && random.percent(50)) {
      world.steps.push_back(program);  // the same order once more: what was learned is used
    }
  }
  make_room(random, world.options, world.model, world.ranks, world.steps,
            disagreement ? Differing::has_no_room : Differing::has_room);
}

/// One rank's whim, or that of several at once; the same step for all, or one after the other.
void draw_given_up(Random& random, ModelWorld& world) {
  const std::size_t count = 1 + random.below(4);
  for (std::size_t i = 0; i < count; ++i) {
    GivenUp each;
    each.step = static_cast<std::size_t>(random.below(world.steps.size()));
    each.rank = static_cast<int>(random.below(static_cast<std::uint64_t>(world.ranks)));
    each.at = random.below(random.of<std::uint64_t>({2, 10, 40}));
    each.inside = random.percent(50);
    world.given_up.push_back(each);
  }
  world.second = nullptr;
  world.update_before = 0;  // ranks that have made one could not go on with those that have not
}

/// Losses are scaled, and too much so in some steps.
void draw_overflows(Random& random, ModelWorld& world, std::uint64_t percent) {
  world.overflow_rank.clear();
  if (!random.percent(percent)) {
    return;
  }
  for (std::size_t step = 0; step < world.steps.size(); ++step) {
    const auto rank = static_cast<int>(random.below(static_cast<std::uint64_t>(world.ranks)));
    world.overflow_rank.push_back(random.percent(50) ? rank : -1);
  }
}

/// The same model with other names, and so with other values to begin with.
Model renamed(const Model& model) {
  Model result;
  for (const Unit& unit : model.units()) {
    if (unit.id != model.root()) {
      result.add_unit("v" + unit.name, unit.parent);
    }
  }
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.unit == model.root()) {
      result.add_parameter(parameter.spec);
    } else {
      result.add_parameter(parameter.unit, parameter.spec);
    }
  }
  for (const Unit& unit : model.units()) {
    for (const UnitParameter& each : unit.parameters) {
      const Parameter& parameter = model.parameters()[each.parameter];
      if (parameter.unit != unit.id) {
        result.tie(unit.id, each.name, parameter.unit, parameter.spec.name);
      }
    }
  }
  return result;
}

/// Plain steps of a small model under any strategy, or of one like the first: then only the runtime
/// tells their collectives apart.
std::shared_ptr<const ModelWorld> random_second(Random& random, const ModelWorld& first) {
  ModelWorld world = first;
  if (random.percent(first.fault.kind == PlannedFault::Kind::disagreement ? 70 : 20)) {
    world.model = renamed(first.model);
    for (std::string& unit : world.options.keep_gathered) {
      unit = "v" + unit;
    }
  } else {
    std::vector<std::vector<std::int64_t>> sizes(1 + random.below(3));
    for (auto& unit : sizes) {
      unit.push_back(static_cast<std::int64_t>(1 + random.below(40)));
    }
    world.model = toy_model(sizes);
    world.options = random_strategy(random, world.model, world.ranks);
  }
  world.steps.assign(1 + random.below(2),
                     plain_step(world.model.units().size(), static_cast<int>(1 + random.below(2))));
  make_room(random, world.options, world.model, world.ranks, world.steps, Differing::has_room);
  world.all_reduce_each_step = false;
  world.reshard_every = 0;
  world.fault = {};
  draw_overflows(random, world, 20);
  return std::make_shared<const ModelWorld>(std::move(world));
}

}  // namespace

ModelWorld random_world(std::uint64_t seed) {
  Random random(seed * 0x51'7c'c1 + 11);
  ModelWorld world;
  world.ranks = random.of<int>({1, 2, 2, 2, 3, 3, 4, 5, 7, 8});
  world.fault = random_fault(random, world.ranks);
  draw_model(random, world);
  draw_steps(random, world);
  world.worker_stream = random.percent(40);
  world.worker_update = random.percent(50);
  world.mixed_updates = random.percent(40);
  world.update_again = random.percent(20);
  world.update_backwards = random.percent(30);
  world.all_reduce_each_step = random.percent(30);
  for (int rank = 0; rank < world.ranks; ++rank) {
    auto& weights = world.weights.emplace_back();
    for (std::uint32_t& weight : weights) {
      weight = random.of<std::uint32_t>({1, 8, 8, 64});
    }
  }
  world.compute_time = random.of<std::uint64_t>({1, 4, 100});
  world.update_time = random.of<std::uint64_t>({1, 100, 30'000});
  world.collective_time = random.of<std::uint64_t>({1, 4, 100, 1000});
  if (random.percent(20)) {  // hosts run far ahead of their devices
    world.weights.assign(static_cast<std::size_t>(world.ranks), {64, 64, 64, 64, 64, 1});
    world.worker_stream = true;
    world.worker_update = true;
    world.update_time = 30'000;
  }
  world.two_streams = random.percent(50);
  world.kernel_time = random.of<std::uint64_t>({2, 2, 500});
  world.update_frozen = random.percent(50);
  if (!is_agreed(world.options) && random.percent(10)) {
    world.reshard_every = 1 + random.below(6);
  }
  if (random.percent(world.fault.kind == PlannedFault::Kind::disagreement ? 60 : 10)) {
    world.second = random_second(random, world);
    world.second_every = 1 + random.below(4);
  }
  world.reference_rank = static_cast<int>(random.below(static_cast<std::uint64_t>(world.ranks)));
  world.update_before = random.percent(10) ? 1 + random.below(5) : 0;
  if (world.fault.kind == PlannedFault::Kind::none && random.percent(25)) {
    draw_given_up(random, world);
  }
  draw_overflows(random, world, 25);
  return world;
}

Expected::Expected(const ModelWorld& world) {
  Reference reference(world.model, world.ranks, OptimizerKind::sgd,
                      {.replicas = world.options.mesh.replicate,
                       .at_step_end = world.options.sum_replicas_at_step_end,
                       .once = is_agreed(world.options),
                       .wire = world.options.reduce_dtype});
  weights.push_back(reference.weights());
  for (std::size_t step = 0; step < world.steps.size(); ++step) {
    if (world.gives_up(step) || world.overflows(step)) {
      gradients.emplace_back();
      weights.push_back(reference.weights());
      continue;
    }
    static_cast<void>(reference.step(world.steps[step], static_cast<int>(step)));
    gradients.push_back(reference.gradients());
    weights.push_back(reference.weights());
  }
}

}  // namespace troupe::test
