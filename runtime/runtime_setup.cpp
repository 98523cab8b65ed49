#include "troupe/core/owners.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe {

namespace {

Options validated(Options options) {
  if (auto valid = validate(options); !valid) {
    throw Error(valid.failure());
  }
  return options;
}

[[noreturn]] void refuse(std::string text) {
  throw Error({.code = ErrorCode::bad_configuration, .text = std::move(text)});
}

Model validated(Model model, const Options& options) {
  const auto is_narrow = [](const Parameter& each) { return each.spec.dtype != DType::f32; };
  if (options.main_weight_dtype == DType::bf16 &&
      std::ranges::none_of(model.parameters(), is_narrow)) {
    refuse("Options::main_weight_dtype is bf16; expected fp32: no parameter of the model is bf16");
  }
  for (const Parameter& parameter : model.parameters()) {
    const std::string& group = parameter.spec.group;
    if (!group.empty() && group != expert_group) {
      refuse("parameter '" + parameter.full_name + "' is in process group '" + group +
             "'; expected '" + std::string(expert_group) + "', or nothing (all ranks of a copy)");
    }
  }
  return model;
}

DeviceMesh resolved(const Options& options, int world_size) {
  const DeviceMesh mesh = value_or_throw(resolve(options.mesh, world_size));
  if (const int size = options.regather_group_size; size > 0 && mesh.shard % size != 0) {
    refuse("Options::regather_group_size is " + std::to_string(size) +
           "; expected a divisor of the " + std::to_string(mesh.shard) +
           " ranks that share a copy of the model");
  }
  return mesh;
}

BucketPlan planned(const Model& model, const Options& options, const DeviceMesh& mesh) {
  BucketPlan plan = plan_buckets(model, options.strategy, options.bucket_bytes);
  if (row_of(options.strategy).master_copy == MasterCopy::whole_parameters) {
    deal_owners(plan, mesh);
  }
  return plan;
}

std::vector<BucketLayout> lay_out(const Model& model,
                                  const BucketPlan& plan,
                                  const DeviceMesh& mesh,
                                  std::int64_t alignment) {
  std::vector<BucketLayout> layouts;
  for (const Bucket& bucket : plan.buckets) {
    std::vector<std::int64_t> numels;
    numels.reserve(bucket.parameters.size());
    for (const ParameterId parameter : bucket.parameters) {
      numels.push_back(model.parameters()[parameter].numel);
    }
    const int members = bucket.group == expert_group ? mesh.shard / mesh.ep : mesh.shard;
    layouts.push_back(bucket.owner < 0
                          ? BucketLayout(numels, members, alignment)
                          : BucketLayout::owned(numels, bucket.owner, members, alignment));
  }
  return layouts;
}

MemoryLimits limits_of(const Model& model, const Options& options) {
  std::vector<UnitId> kept_units;
  for (const std::string& name : options.keep_gathered) {
    try {
      kept_units.push_back(model.unit(name));
    } catch (const Error& error) {
      refuse(std::string("Options::keep_gathered: ") + error.what());
    }
  }
  return {.slots = options.slots,
          .outsized_slots = options.outsized_slots,
          .gradient_slots = options.gradient_slots,
          .outsized_gradient_slots = options.outsized_gradient_slots,
          .prefetch_depth = options.overlap ? options.prefetch_depth : 0,
          .gradient_dtype = options.gradient_dtype.value_or(options.reduce_dtype),
          .reduce_dtype = options.reduce_dtype,
          .keep_gathered = row_of(options.strategy).full_buffer == FullBuffer::stays ||
                           !options.reshard_after_forward,
          .kept_units = std::move(kept_units),
          .keep_gradients = !options.free_full_gradients};
}

ScheduleRules rules_of(const Options& options, const DeviceMesh& mesh) {
  const ReplicaSum replica_sum = mesh.replicate == 1                ? ReplicaSum::none
                                 : options.sum_replicas_at_step_end ? ReplicaSum::at_step_end
                                                                    : ReplicaSum::every_reduce;
  return {.agreed = row_of(options.strategy).full_buffer == FullBuffer::stays,
          .regather = options.regather_group_size > 0,
          .replica_sum = replica_sum,
          .accumulates = !options.free_full_gradients};
}

}  // namespace

RuntimeImpl::RuntimeImpl(World& given_world, Model given_model, Options given_options)
    : world(given_world),
      context(given_world.context()),
      rank(context.actors()),
      device(context.device()),
      model(validated(std::move(given_model), given_options)),
      options(validated(std::move(given_options))),
      mesh(resolved(options, context.size())),
      plan(planned(model, options, mesh)),
      layouts(lay_out(model, plan, mesh, options.alignment_numel)),
      memory(value_or_throw(plan_memory(model, plan, layouts, limits_of(model, options)))),
      versions(plan.buckets.size(), 0),
      filling_(plan.buckets.size(), no_slot),
      updated_(plan.buckets.size()),
      contributed_(model.parameters().size()) {
  const RankContext::Call guard(context, "Runtime::Runtime");
  agree_with_other_ranks();
  groups_ = make_process_groups(context, mesh, options.regather_group_size);
  if (context.rank() == 0) {
    for (const std::string& warning : memory.warnings) {
      context.warn(warning);
    }
  }
  allocate();
  find_places();
  if (RankTrace* const trace = rank.config().trace; trace != nullptr) {
    steps_row_ = trace->acquire_row(this, "steps");
  }
  spawn();
  context.add(*this);
}

/// The part of a bucket's full buffer whose main weights this rank has.
Range RuntimeImpl::own_range(BucketId bucket) const {
  return layouts[bucket].shard(groups_.of(plan.buckets[bucket]).member);
}

/// Where full buffers stay, main weights of the same dtype are this rank's part of it: they change
/// only in an update, when nothing reads it.
bool RuntimeImpl::weights_in_slot(BucketId bucket) const {
  const DType dtype = plan.buckets[bucket].dtype;
  return row_of(options.strategy).full_buffer == FullBuffer::stays && dtype == weight_dtype(dtype);
}

void RuntimeImpl::allocate() {
  constexpr auto fp32 = static_cast<std::int64_t>(size_of(DType::f32));
  const auto bytes = [](std::int64_t numel, DType dtype) {
    const std::int64_t size = numel * static_cast<std::int64_t>(size_of(dtype));
    return (size + fp32 - 1) / fp32 * fp32;  // behind bf16 may lie fp32
  };
  std::int64_t wide_weights = 0;
  std::int64_t wide_gradients = 0;
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t kept = 0;
  std::vector<std::int64_t> weight_offset;
  std::vector<std::int64_t> gradient_offset;
  std::vector<std::int64_t> kept_offset;
  for (const Bucket& bucket : plan.buckets) {
    weight_offset.push_back(weights);
    gradient_offset.push_back(gradients);
    kept_offset.push_back(kept);
    const std::int64_t own = own_range(bucket.id).numel;
    weights += weights_in_slot(bucket.id) ? 0 : bytes(own, weight_dtype(bucket.dtype));
    gradients += bucket.trainable ? bytes(own, options.main_gradient_dtype) : 0;
    wide_weights = std::max(wide_weights, weight_dtype(bucket.dtype) == DType::f32 ? 0 : own);
    wide_gradients = std::max(
        wide_gradients, !bucket.trainable || options.main_gradient_dtype == DType::f32 ? 0 : own);
    kept += kept_range(bucket.id).numel * static_cast<std::int64_t>(size_of(bucket.dtype));
  }
  main_weights_ = value_or_throw(device.allocate(weights, Purpose::main_weights));
  main_gradients_ = value_or_throw(device.allocate(gradients, Purpose::main_gradients));
  wide_shard_ =
      value_or_throw(device.allocate((wide_weights + wide_gradients) * fp32, Purpose::wide_shard));
  wide_gradients_ = wide_weights;
  parameter_slots_ =
      value_or_throw(device.allocate(memory.parameters.bytes, Purpose::parameter_slots));
  gradient_slots_memory_ =
      value_or_throw(device.allocate(memory.gradients.bytes, Purpose::gradient_slots));
  gradient_staging_ =
      value_or_throw(device.allocate(memory.staging_bytes, Purpose::gradient_staging));
  kept_parameters_ = value_or_throw(device.allocate(kept, Purpose::kept_parameters));
  for (const std::int64_t offset : memory.parameters.slot_offset) {
    table_.slots.push_back(parameter_slots_.bytes_at(offset));
  }
  for (const std::int64_t offset : memory.gradients.slot_offset) {
    // The plan's offsets are those of one arena; ours has two parts, to be counted apart.
    table_.gradient_slots.push_back(
        gradient_slots_memory_.bytes_at(offset - memory.parameters.bytes));
  }
  table_.gathered.resize(table_.slots.size());
  table_.reduced.resize(table_.gradient_slots.size());
  gradient_slots_.resize(table_.gradient_slots.size());
  for (const Bucket& bucket : plan.buckets) {
    std::byte* own = main_weights_.bytes_at(weight_offset[bucket.id]);
    if (weights_in_slot(bucket.id)) {
      const SlotClass& slot_class =
          memory.parameters.classes[memory.parameters.class_of[bucket.id]];
      own = table_.slots[slot_class.first] +
            own_range(bucket.id).offset * static_cast<std::int64_t>(size_of(bucket.dtype));
    }
    weights_of_.push_back(own);
    gradients_of_.push_back(bucket.trainable ? main_gradients_.bytes_at(gradient_offset[bucket.id])
                                             : nullptr);
    kept_of_.push_back(kept_range(bucket.id).numel > 0
                           ? kept_parameters_.bytes_at(kept_offset[bucket.id])
                           : nullptr);
  }
}

/// What this rank keeps of a bucket for the smaller group that gathers again.
Range RuntimeImpl::kept_range(BucketId bucket) const {
  if (options.regather_group_size == 0 || plan.buckets[bucket].group == expert_group) {
    return {};
  }
  const std::int64_t numel = layouts[bucket].numel_padded() / options.regather_group_size;
  return {numel * groups_.regathers.member, numel};
}

void RuntimeImpl::find_places() {
  for (const Unit& unit : model.units()) {
    std::vector<Place>& places = places_.emplace_back();
    for (const UnitParameter& each : unit.parameters) {
      const BucketId bucket = plan.bucket_of[each.parameter];
      const std::vector<ParameterId>& members = plan.buckets[bucket].parameters;
      const auto index = std::ranges::find(members, each.parameter) - members.begin();
      places.push_back({each.name, &model.parameters()[each.parameter], bucket,
                        static_cast<std::uint32_t>(index),
                        layouts[bucket].parameters()[static_cast<std::size_t>(index)]});
    }
  }
}

void RuntimeImpl::spawn() {
  const auto bytes_of_slots = [](const SlotPlan& slots) {
    std::vector<std::int64_t> bytes(slots.slot_count());
    for (const SlotClass& each : slots.classes) {
      std::fill_n(bytes.begin() + each.first, each.count, each.bytes_per_slot);
    }
    return bytes;
  };
  const auto ranges = [](std::vector<Range> list) {
    return std::make_shared<const std::vector<Range>>(std::move(list));
  };
  const ScheduleRules rules = rules_of(options, mesh);
  SchedulerSetup scheduler{.plan = make_schedule_plan(model, plan, memory, rules),
                           .slot_bytes = bytes_of_slots(memory.parameters),
                           .gradient_slot_bytes = bytes_of_slots(memory.gradients)};
  std::byte* const staging = memory.staging_bytes > 0 ? gradient_staging_.bytes_at(0) : nullptr;
  std::vector<BucketSetup> buckets;
  for (const Bucket& bucket : plan.buckets) {
    const BucketLayout& layout = layouts[bucket.id];
    if (rules.agreed) {
      scheduler.whole.push_back(ranges({{0, layout.numel_padded()}}));
    }
    buckets.push_back({.id = bucket.id,
                       .label = model.units()[bucket.units.front()].name,
                       .dtype = bucket.dtype,
                       .gradient_dtype = gradient_dtype(),
                       .reduce_dtype = options.reduce_dtype,
                       .unshard_by = row_of(options.strategy).unshard_by,
                       .reduce_by = row_of(options.strategy).reduce_by,
                       .group = groups_.of(bucket).group,
                       .owner = bucket.owner,
                       .numel = layout.numel_padded(),
                       .own = own_range(bucket.id),
                       .weight_dtype = weight_dtype(bucket.dtype),
                       .main_weights = weights_of_[bucket.id],
                       .main_gradient_dtype = options.main_gradient_dtype,
                       .main_gradients = gradients_of_[bucket.id],
                       .staging = staging,
                       .gaps = ranges(layout.gaps()),
                       .replicas = groups_.replicas.group,
                       .sum_each_reduce = rules.replica_sum == ReplicaSum::every_reduce,
                       .regather = groups_.regathers.group,
                       .kept = kept_of_[bucket.id],
                       .kept_range = kept_range(bucket.id)});
  }
  actors_ = std::make_unique<RuntimeActors>(rank, std::move(scheduler), std::move(buckets), table_);
}

RuntimeImpl::~RuntimeImpl() {
  context.remove(*this);
  give_up_save();
  if (!actors_) {
    return;
  }
  const auto leave_memory = [&](const char* why) {
    context.log("rank " + std::to_string(context.rank()) + ": " + why +
                "; its memory is left behind");
    // On purpose: somebody may still read it. Out of memory for a pointer ends the process.
    // NOLINTBEGIN(bugprone-unhandled-exception-at-new,clang-analyzer-cplusplus.NewDeleteLeaks)
    static_cast<void>(new std::array<Buffer, 7>{
        std::move(main_weights_), std::move(main_gradients_), std::move(parameter_slots_),
        std::move(gradient_slots_memory_), std::move(gradient_staging_),
        std::move(kept_parameters_), std::move(wide_shard_)});
    static_cast<void>(new auto(std::move(states)));
    // NOLINTEND(bugprone-unhandled-exception-at-new,clang-analyzer-cplusplus.NewDeleteLeaks)
  };
  // Peers that are about to take part in the collectives under way have as long as in any call.
  const Duration call_limit = context.timeout() + std::chrono::seconds{2};
  if (!rank.failed() && !actors_->quiesce(call_limit)) {
    rank.fail({.code = ErrorCode::timeout,
               .text = "rank " + std::to_string(context.rank()) + ": " +
                       std::to_string(actors_->tickets_open()) +
                       " collectives were still under way when the runtime ended",
               .rank = context.rank()});
  }
  constexpr std::chrono::seconds after_failure{
      30};  // aborted collectives end as soon as readers are out
  if (!actors_->quiesce(after_failure)) {
    leave_memory("collectives did not end after the failure");
  } else if (!await_streams(rank.failed() ? after_failure : call_limit)) {
    leave_memory("work on the trainer's streams did not end");
  }
  for (Stream* stream : streams_) {
    if (const auto failure = stream->failure()) {
      context.body_failed(*failure);  // unless the world knows: gradients would have told it
    }
  }
  actors_.reset();
  if (RankTrace* const trace = rank.config().trace; trace != nullptr) {
    trace->release_row(steps_row_);
  }
}

}  // namespace troupe
