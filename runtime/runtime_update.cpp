// Updates: the only time in which parameters change, from the wait for all who read them to the
// moment at which each bucket may be gathered again.
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace troupe {

void RuntimeImpl::begin_update(Stream* stream) {
  const Call guard(*this, "Runtime::update");
  if (updating_) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "Runtime::update: another update is open; end it first"});
  }
  stream = stream != nullptr && stream->is_caller() ? nullptr : stream;
  check_stream(stream);
  ask({.kind = TrainerEventKind::begin_update});
  admit(stream);
  // Shards may be written once no gather reads them, here or on a peer.
  const Event& last = rank.state().last_event[static_cast<std::size_t>(Channel::gather)];
  rank.wait(
      rank.next_ticket() - 1, [&] { return last.done(); }, "the gathers that read the shards");
  for (const Bucket& bucket : plan.buckets) {
    await_update(bucket.id, stream);
  }
  await_uses(stream);
  updating_ = true;
  update_ = context.compute_log().begin(stream);
}

void RuntimeImpl::end_update(bool complete, bool half) {
  updating_ = false;
  wide_bucket_ = no_bucket;  // if it was abandoned
  half_updated_ = half_updated_ || half;
  if (complete) {
    updated_since_ = true;
    context.note_update();
  }
  context.compute_log().end(update_, "update", "", context.abandoned());
}

void RuntimeImpl::finish_update(BucketId bucket, Stream* stream, bool changed) {
  const Call guard(*this, "Update::finish");
  put_back(bucket, stream);
  updated_[bucket] = stream != nullptr ? stream->record() : Event{};
  ask({.kind = TrainerEventKind::updated,
       .bucket = bucket,
       .changed = changed,
       .event = updated_[bucket]});
  ++versions[bucket];
}

ShardView RuntimeImpl::shard(BucketId bucket, Stream* stream) {
  Stream& on = stream != nullptr ? *stream : Stream::caller();
  ShardView view{.bucket = bucket,
                 .trainable = plan.buckets[bucket].trainable,
                 .weights = main_weights(bucket, on),
                 .gradients = {},
                 .pieces = layouts[bucket].pieces(groups_.of(plan.buckets[bucket]).member)};
  bool widened = weight_dtype(plan.buckets[bucket].dtype) != DType::f32;
  if (view.trainable && gradients_finished) {
    view.gradients = main_gradients(bucket, on);
    widened = widened || options.main_gradient_dtype != DType::f32;
  }
  wide_bucket_ = widened ? bucket : wide_bucket_;
  return view;
}

std::span<float> RuntimeImpl::main_weights(BucketId bucket, Stream& stream) {
  const std::int64_t numel = own_range(bucket).numel;
  const DType dtype = weight_dtype(plan.buckets[bucket].dtype);
  auto* weights = reinterpret_cast<float*>(weights_of_[bucket]);
  if (dtype != DType::f32) {
    weights = wide_room(bucket, 0);
    if (wide_bucket_ != bucket) {  // else it is there, with what was written since
      device.cast(stream, dtype, weights_of_[bucket], DType::f32, weights, numel);
    }
  }
  return {weights, static_cast<std::size_t>(numel)};
}

std::span<const float> RuntimeImpl::main_gradients(BucketId bucket, Stream& stream) {
  const std::int64_t numel = own_range(bucket).numel;
  auto* gradients = reinterpret_cast<float*>(gradients_of_[bucket]);
  if (options.main_gradient_dtype != DType::f32) {
    gradients = wide_room(bucket, wide_gradients_);
    device.cast(stream, options.main_gradient_dtype, gradients_of_[bucket], DType::f32, gradients,
                numel);
  }
  return {gradients, static_cast<std::size_t>(numel)};
}

/// Where shards are widened, from element `offset` on.
float* RuntimeImpl::wide_room(BucketId bucket, std::int64_t offset) {
  if (wide_bucket_ != no_bucket && wide_bucket_ != bucket) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "shard " + std::to_string(bucket) + " was asked for while shard " +
                         std::to_string(wide_bucket_) +
                         " is in use: main weights or gradients in bf16 are widened one shard at a "
                         "time; finish that one, or put it back, first",
                 .bucket = bucket});
  }
  return wide_shard_.as<float>() + offset;
}

void RuntimeImpl::store_weights(BucketId bucket,
                                std::int64_t offset,
                                const float* values,
                                std::int64_t numel) {
  const DType dtype = weight_dtype(plan.buckets[bucket].dtype);
  device.cast(Stream::caller(), DType::f32, values, dtype,
              weights_of_[bucket] + offset * static_cast<std::int64_t>(size_of(dtype)), numel);
}

/// Stores what was written to widened weights; their room is free again.
void RuntimeImpl::put_back(BucketId bucket, Stream* stream) {
  const DType dtype = weight_dtype(plan.buckets[bucket].dtype);
  if (wide_bucket_ == bucket && dtype != DType::f32) {
    device.cast(stream != nullptr ? *stream : Stream::caller(), DType::f32, wide_shard_.as<float>(),
                dtype, weights_of_[bucket], own_range(bucket).numel);
  }
  wide_bucket_ = wide_bucket_ == bucket ? no_bucket : wide_bucket_;
}

std::span<float> RuntimeImpl::state(std::string_view name, BucketId bucket) {
  if (bucket >= plan.buckets.size()) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "Runtime::state('" + std::string(name) + "', " + std::to_string(bucket) +
                         "): there are " + std::to_string(plan.buckets.size()) + " buckets"});
  }
  auto found = states.find(name);
  if (found == states.end()) {
    found = states.emplace(name, std::vector<Buffer>(plan.buckets.size())).first;
    states_made.emplace(name, std::vector<bool>(plan.buckets.size()));
  }
  states_made.find(name)->second[bucket] = true;
  const std::int64_t numel = own_range(bucket).numel;
  Buffer& buffer = found->second[bucket];
  if (buffer.data() == nullptr && numel > 0) {
    buffer = value_or_throw(
        device.allocate(numel * static_cast<std::int64_t>(sizeof(float)), Purpose::optimizer));
  }
  return {buffer.as<float>(), static_cast<std::size_t>(numel)};
}

void RuntimeImpl::initialize(const std::function<void(ParameterView)>& fill, Update& update) {
  std::int64_t largest = 0;
  for (const Parameter& parameter : model.parameters()) {
    largest = std::max(largest, parameter.numel);
  }
  auto room =
      device.allocate(largest * static_cast<std::int64_t>(sizeof(float)), Purpose::temporary);
  if (!room) {
    throw Error(room.failure());
  }
  const Buffer whole = std::move(room).value();
  for (const Bucket& bucket : plan.buckets) {
    ShardView own = update.shard(bucket.id);
    std::uint32_t index = 0;
    for (const ParameterId id : bucket.parameters) {
      const Parameter& parameter = model.parameters()[id];
      const std::span<float> values{whole.as<float>(), static_cast<std::size_t>(parameter.numel)};
      std::ranges::fill(values, 0.0F);
      fill({parameter.full_name, &parameter.spec.shape, values});
      for (const ShardPiece& piece : own.pieces) {
        if (piece.index == index) {
          std::copy_n(values.begin() + piece.parameter_offset, piece.numel,
                      own.weights.begin() + piece.shard_offset);
        }
      }
      ++index;
    }
    update.finish(bucket.id);
  }
}

Update::Update(Runtime& owner, RuntimeImpl& runtime, Stream* stream)
    : owner_(&owner),
      runtime_(&runtime),
      stream_(stream != nullptr && stream->is_caller() ? nullptr : stream),
      finished_(runtime.plan.buckets.size(), false),
      seen_(runtime.plan.buckets.size(), false),
      exceptions_(std::uncaught_exceptions()) {}

Update::Update(Update&& other) noexcept
    : owner_(other.owner_),
      runtime_(std::exchange(other.runtime_, nullptr)),
      stream_(other.stream_),
      finished_(std::move(other.finished_)),
      seen_(std::move(other.seen_)),
      exceptions_(other.exceptions_) {}

Update::~Update() {
  if (runtime_ == nullptr) {
    return;
  }
  if (std::uncaught_exceptions() > exceptions_) {
    runtime_->context.abandon("an update");  // shards may be half written
  }
  try {
    for (BucketId bucket = 0;
         bucket < finished_.size() && !runtime_->context.abandoned() && !runtime_->rank.failed();
         ++bucket) {
      if (!finished_[bucket]) {
        finish(bucket);
      }
    }
  } catch (const Error& error) {
    runtime_->defer(error.failure());
  } catch (const std::exception& exception) {
    runtime_->defer({.code = ErrorCode::internal,
                     .text = std::string("the end of an update: ") + exception.what()});
  }
  const auto all = std::ranges::count(finished_, true);
  const bool touched = all > 0 || std::ranges::find(seen_, true) != seen_.end();
  const bool complete = all == std::ssize(finished_);
  runtime_->end_update(complete, touched && !complete);
}

std::size_t Update::shard_count() const {
  return finished_.size();
}

ShardView Update::shard(std::size_t index) {
  if (index >= finished_.size() || finished_[index]) {
    throw Error(
        {.code = ErrorCode::misuse,
         .text = "Update::shard(" + std::to_string(index) + "): " +
                 (index < finished_.size() ? "it was finished already"
                                           : "there are " + std::to_string(finished_.size()))});
  }
  ShardView shard = runtime_->shard(static_cast<BucketId>(index), stream_);
  seen_[index] = true;
  return shard;
}

void Update::put_back(std::size_t index) {
  if (index < finished_.size() && !finished_[index]) {
    runtime_->put_back(static_cast<BucketId>(index), stream_);
  }
}

void Update::finish(BucketId bucket) {
  if (bucket >= finished_.size() || finished_[bucket]) {
    throw Error(
        {.code = ErrorCode::misuse,
         .text = "Update::finish(" + std::to_string(bucket) + "): " +
                 (bucket < finished_.size() ? "it was finished already"
                                            : "there are " + std::to_string(finished_.size()))});
  }
  runtime_->finish_update(bucket, stream_,
                          seen_[bucket] || runtime_->plan.buckets[bucket].trainable);
  finished_[bucket] = true;
}

}  // namespace troupe
