#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace troupe {

namespace {

template <class T>
T value_or_throw(Result<T> result) {
  if (!result) {
    throw Error(result.failure());
  }
  return std::move(result).value();
}

Options validated(Options options) {
  if (auto valid = validate(options); !valid) {
    throw Error(valid.failure());
  }
  return options;
}

Model validated(Model model) {
  for (const Parameter& parameter : model.parameters()) {
    if (!parameter.spec.group.empty()) {
      throw Error(
          {.code = ErrorCode::bad_configuration,
           .text = "parameter '" + parameter.full_name + "' is in process group '" +
                   parameter.spec.group +
                   "'; this version knows the data-parallel group only (leave `group` empty)"});
    }
  }
  return model;
}

std::vector<BucketLayout> lay_out(const Model& model,
                                  const BucketPlan& plan,
                                  int world_size,
                                  std::int64_t alignment) {
  std::vector<BucketLayout> layouts;
  for (const Bucket& bucket : plan.buckets) {
    std::vector<std::int64_t> numels;
    numels.reserve(bucket.parameters.size());
    for (const ParameterId parameter : bucket.parameters) {
      numels.push_back(model.parameters()[parameter].numel);
    }
    layouts.emplace_back(numels, world_size, alignment);
  }
  return layouts;
}

MemoryLimits limits_of(const Options& options) {
  return {.slots = options.slots,
          .outsized_slots = options.outsized_slots,
          .gradient_slots = options.gradient_slots,
          .outsized_gradient_slots = options.outsized_gradient_slots,
          .prefetch_depth = options.prefetch_depth,
          .gradient_dtype = options.reduce_dtype};
}

/// FNV-1a; to compare what ranks were given.
class Hash {
 public:
  Hash& add(std::string_view text) {
    for (const char c : text) {
      word(static_cast<unsigned char>(c));
    }
    return add(static_cast<std::int64_t>(text.size()));
  }
  Hash& add(std::int64_t number) {
    for (int byte = 0; byte < 8; ++byte) {
      word(static_cast<std::uint64_t>(number) >> (8 * byte) & 0xffU);
    }
    return *this;
  }
  Hash& add(const std::optional<int>& number) { return add(std::int64_t{number.value_or(-1)}); }
  std::uint64_t value() const { return value_; }

 private:
  void word(std::uint64_t bits) { value_ = (value_ ^ bits) * 1099511628211ULL; }
  std::uint64_t value_ = 14695981039346656037ULL;
};

std::uint64_t hash_of(const Model& model) {
  Hash hash;
  for (const Unit& unit : model.units()) {
    hash.add(unit.name).add(std::int64_t{unit.parent});
    for (const UnitParameter& each : unit.parameters) {
      hash.add(each.name).add(std::int64_t{each.parameter});
    }
  }
  for (const Parameter& parameter : model.parameters()) {
    hash.add(parameter.full_name)
        .add(static_cast<std::int64_t>(parameter.spec.dtype))
        .add(std::int64_t{parameter.spec.trainable});
    for (const std::int64_t extent : parameter.spec.shape) {
      hash.add(extent);
    }
  }
  return hash.value();
}

std::uint64_t hash_of(const Options& options) {
  return Hash{}
      .add(static_cast<std::int64_t>(options.strategy))
      .add(options.slots)
      .add(options.outsized_slots)
      .add(options.gradient_slots)
      .add(options.outsized_gradient_slots)
      .add(options.prefetch_depth)
      .add(options.bucket_bytes)
      .add(options.alignment_numel)
      .add(static_cast<std::int64_t>(options.reduce_dtype))
      .add(std::int64_t{std::bit_cast<std::int32_t>(options.gradient_divisor.value_or(-1.0F))})
      .value();
}

}  // namespace

RuntimeImpl::RuntimeImpl(World& given_world, Model given_model, Options given_options)
    : world(given_world),
      context(given_world.context()),
      rank(context.actors()),
      device(context.device()),
      model(validated(std::move(given_model))),
      options(validated(given_options)),
      plan(plan_buckets(model, options.strategy, options.bucket_bytes)),
      layouts(lay_out(model, plan, context.size(), options.alignment_numel)),
      memory(value_or_throw(plan_memory(model, plan, layouts, limits_of(options)))),
      versions(plan.buckets.size(), 0),
      filling_(plan.buckets.size(), no_slot),
      updated_(plan.buckets.size()) {
  const RankContext::Call guard(context, "Runtime::Runtime");
  agree_with_other_ranks();
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
}

void RuntimeImpl::agree_with_other_ranks() {
  constexpr std::size_t words = 2;
  const std::array<std::uint64_t, words> own{hash_of(model), hash_of(options)};
  // All-gather moves bits, whatever they mean as numbers.
  constexpr std::size_t floats = words * 2;
  std::vector<std::uint64_t> all(words * static_cast<std::size_t>(context.size()));
  rank.collective(Channel::gather,
                  {.op = Collective::all_gather,
                   .label = "of model and options",
                   .input = own.data(),
                   .output = all.data(),
                   .numel = floats},
                  {});
  for (std::size_t peer = 1; peer < static_cast<std::size_t>(context.size()); ++peer) {
    for (std::size_t word = 0; word < words; ++word) {
      if (all[peer * words + word] != all[word]) {
        throw Error({.code = ErrorCode::bad_configuration,
                     .text = "rank " + std::to_string(peer) + " was given " +
                             (word == 0 ? "another model" : "other options") +
                             " than rank 0; they have to be the same on all ranks",
                     .rank = static_cast<int>(peer)});
      }
    }
  }
}

void RuntimeImpl::allocate() {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::vector<std::int64_t> weight_offset;
  std::vector<std::int64_t> gradient_offset;
  for (const Bucket& bucket : plan.buckets) {
    weight_offset.push_back(weights);
    gradient_offset.push_back(gradients);
    weights += layouts[bucket.id].shard_numel();
    gradients += bucket.trainable ? layouts[bucket.id].shard_numel() : 0;
  }
  constexpr auto fp32 = static_cast<std::int64_t>(size_of(DType::f32));
  main_weights_ = value_or_throw(device.allocate(weights * fp32, Purpose::main_weights));
  main_gradients_ = value_or_throw(device.allocate(gradients * fp32, Purpose::main_gradients));
  parameter_slots_ =
      value_or_throw(device.allocate(memory.parameters.bytes, Purpose::parameter_slots));
  gradient_slots_memory_ =
      value_or_throw(device.allocate(memory.gradients.bytes, Purpose::gradient_slots));
  for (const Bucket& bucket : plan.buckets) {
    weights_of_.push_back(main_weights_.as<float>() + weight_offset[bucket.id]);
    gradients_of_.push_back(
        bucket.trainable ? main_gradients_.as<float>() + gradient_offset[bucket.id] : nullptr);
  }
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
  SchedulerSetup scheduler{make_schedule_plan(model, plan, memory),
                           bytes_of_slots(memory.parameters), bytes_of_slots(memory.gradients)};
  std::vector<BucketSetup> buckets;
  for (const Bucket& bucket : plan.buckets) {
    const BucketLayout& layout = layouts[bucket.id];
    buckets.push_back({.id = bucket.id,
                       .label = model.units()[bucket.units.front()].name,
                       .dtype = bucket.dtype,
                       .gradient_dtype = options.reduce_dtype,
                       .shard_numel = layout.shard_numel(),
                       .main_weights = weights_of_[bucket.id],
                       .main_gradients = gradients_of_[bucket.id],
                       .gaps = std::make_shared<const std::vector<Range>>(layout.gaps())});
  }
  actors_ = std::make_unique<RuntimeActors>(rank, std::move(scheduler), std::move(buckets), table_);
}

RuntimeImpl::~RuntimeImpl() {
  if (!actors_) {
    return;
  }
  const auto leave_memory = [&](const char* why) {
    context.log("rank " + std::to_string(context.rank()) + ": " + why +
                "; its memory is left behind");
    // On purpose: somebody may still read it. Out of memory for a pointer ends the process.
    // NOLINTBEGIN(bugprone-unhandled-exception-at-new,clang-analyzer-cplusplus.NewDeleteLeaks)
    static_cast<void>(
        new std::array<Buffer, 4>{std::move(main_weights_), std::move(main_gradients_),
                                  std::move(parameter_slots_), std::move(gradient_slots_memory_)});
    static_cast<void>(new auto(std::move(optimizer_states)));
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
