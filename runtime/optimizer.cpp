#include "troupe/runtime/optimizer.hpp"

#include "troupe/runtime/runtime_impl.hpp"

#include <cmath>

namespace troupe {

namespace {

void check_gradients(const Runtime& runtime, const char* optimizer) {
  if (!runtime.gradients_finished()) {
    throw Error({.code = ErrorCode::misuse,
                 .text = std::string(optimizer) +
                         "::step: the gradients are not complete; call finish_gradients() first"});
  }
}

bool is_frozen(const Runtime& runtime, std::size_t bucket) {
  return !runtime.bucket_plan().buckets[bucket].trainable;
}

}  // namespace

void Sgd::step(Runtime& runtime) {
  check_gradients(runtime, "Sgd");
  Update update = runtime.update();
  for (std::size_t index = 0; index < update.shard_count(); ++index) {
    if (is_frozen(runtime, index)) {
      update.finish(static_cast<BucketId>(index));  // not touched
      continue;
    }
    const ShardView shard = update.shard(index);
    for (std::size_t i = 0; i < shard.gradients.size(); ++i) {
      shard.weights[i] = shard.weights[i] - options_.learning_rate * shard.gradients[i];
    }
    update.finish(shard.bucket);
  }
}

void AdamW::step(Runtime& runtime) {
  check_gradients(runtime, "AdamW");
  // Not by address alone: another runtime may have taken the place of the one that is gone.
  if (runtime_ && runtime_->lock().get() != &runtime.impl()) {
    throw Error(
        {.code = ErrorCode::misuse,
         .text =
             "AdamW::step: this optimizer holds the state of another runtime; use one for each"});
  }
  Update update = runtime.update();
  if (!runtime_) {
    states_.resize(update.shard_count());
    for (std::size_t index = 0; index < update.shard_count(); ++index) {
      if (!is_frozen(runtime, index)) {
        const auto numel = static_cast<std::int64_t>(update.shard(index).weights.size());
        states_[index] = {runtime.allocate_state(numel), runtime.allocate_state(numel)};
      }
    }
    runtime_ = runtime.impl().weak_from_this();
  }
  ++steps_;
  const auto t = static_cast<double>(steps_);
  const auto c1 = static_cast<float>(1.0 - std::pow(static_cast<double>(options_.beta1), t));
  const auto c2 = static_cast<float>(1.0 - std::pow(static_cast<double>(options_.beta2), t));
  const float beta1 = options_.beta1;
  const float beta2 = options_.beta2;
  for (std::size_t index = 0; index < update.shard_count(); ++index) {
    if (is_frozen(runtime, index)) {
      update.finish(static_cast<BucketId>(index));  // not touched
      continue;
    }
    const ShardView shard = update.shard(index);
    float* m = states_[index].m.data();
    float* v = states_[index].v.data();
    for (std::size_t i = 0; i < shard.gradients.size(); ++i) {
      const float g = shard.gradients[i];
      const float p = shard.weights[i];
      m[i] = beta1 * m[i] + (1.0F - beta1) * g;
      v[i] = beta2 * v[i] + (1.0F - beta2) * (g * g);
      const float direction = (m[i] / c1) / (std::sqrt(v[i] / c2) + options_.epsilon);
      shard.weights[i] = p - options_.learning_rate * (direction + options_.weight_decay * p);
    }
    update.finish(shard.bucket);
  }
}

}  // namespace troupe
