#include "troupe/runtime/optimizer.hpp"

#include <cmath>
#include <string>
#include <utility>

namespace troupe {

ShardedOptimizer::ShardedOptimizer(float learning_rate,
                                   float weight_decay,
                                   std::vector<ParameterGroup> groups,
                                   bool groups_only)
    : learning_rate_(learning_rate),
      weight_decay_(weight_decay),
      groups_(std::move(groups)),
      groups_only_(groups_only) {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (!groups_[group].parameters) {
      throw Error({.code = ErrorCode::bad_configuration,
                   .text = "ParameterGroup::parameters of group " + std::to_string(group) +
                           " is empty; expected a function that says which parameters are in it"});
    }
  }
}

void ShardedOptimizer::set_learning_rate(std::size_t group, float learning_rate) {
  if (group >= groups_.size()) {
    throw Error({.code = ErrorCode::misuse,
                 .text = std::string(name()) + "::set_learning_rate: group " +
                         std::to_string(group) + " does not exist; there are " +
                         std::to_string(groups_.size())});
  }
  groups_[group].learning_rate = learning_rate;
}

void ShardedOptimizer::check_gradients(const Runtime& runtime) const {
  if (!runtime.gradients_finished()) {
    throw Error({.code = ErrorCode::misuse,
                 .text = std::string(name()) +
                         "::step: the gradients are not complete; call finish_gradients() first"});
  }
}

void ShardedOptimizer::step(Runtime& runtime) {
  check_gradients(runtime);
  Update update = runtime.update();
  const std::vector<std::size_t> groups = begin_step(runtime);
  for (BucketId bucket = 0; bucket < update.shard_count(); ++bucket) {
    update_shard(update, bucket, groups);
    update.finish(bucket);
  }
}

void ShardedOptimizer::step(Update& update) {
  check_gradients(update.runtime());
  const std::vector<std::size_t> groups = begin_step(update.runtime());
  for (BucketId bucket = 0; bucket < update.shard_count(); ++bucket) {
    update_shard(update, bucket, groups);
  }
}

std::size_t ShardedOptimizer::group_of(const Parameter& parameter) const {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].parameters(parameter)) {
      return group;
    }
  }
  return groups_only_ ? left_to_others : no_group;
}

/// Whatever may throw, before anything is changed: predicates, and room for state, which every rank
/// makes alike, whatever lies in its shards. Returns the group of each parameter.
std::vector<std::size_t> ShardedOptimizer::begin_step(Runtime& runtime) const {
  std::vector<std::size_t> groups;
  for (const Parameter& parameter : runtime.model().parameters()) {
    groups.push_back(parameter.spec.trainable ? group_of(parameter) : left_to_others);
  }
  static_cast<void>(runtime.counts(steps()));
  for (std::size_t id = 0; id < groups.size(); ++id) {
    if (groups[id] != left_to_others) {
      for (const char* state : states()) {
        static_cast<void>(runtime.state(state, runtime.bucket_plan().bucket_of[id]));
      }
    }
  }
  return groups;
}

void ShardedOptimizer::update_shard(Update& update,
                                    BucketId bucket,
                                    const std::vector<std::size_t>& groups) {
  Runtime& runtime = update.runtime();
  const Bucket& plan = runtime.bucket_plan().buckets[bucket];
  if (!plan.trainable) {
    return;  // not asked for: it has not changed
  }
  const ShardView shard = update.shard(bucket);
  // Counted on every rank, and not before the shard is touched: a step given up until then has to
  // leave the counts as they were.
  const std::span<std::uint64_t> counts = runtime.counts(steps());
  for (const ParameterId id : plan.parameters) {
    counts[id] += std::uint64_t{groups[id] != left_to_others};
  }
  for (const ShardPiece& each : shard.pieces) {
    const ParameterId id = plan.parameters[each.index];
    const std::size_t group = groups[id];
    if (group == left_to_others) {
      continue;
    }
    const auto offset = static_cast<std::size_t>(each.shard_offset);
    Piece piece{.bucket = bucket,
                .offset = offset,
                .numel = static_cast<std::size_t>(each.numel),
                .step = counts[id],
                .learning_rate = learning_rate_,
                .weight_decay = weight_decay_,
                .weights = shard.weights.data() + offset,
                .gradients = shard.gradients.data() + offset};
    if (group != no_group) {
      piece.learning_rate = groups_[group].learning_rate.value_or(learning_rate_);
      piece.weight_decay = groups_[group].weight_decay.value_or(weight_decay_);
    }
    this->update(runtime, piece);
  }
  update.put_back(bucket);  // other optimizers may have parameters in other buckets
}

Sgd::Sgd(const SgdOptions& options)
    : ShardedOptimizer(
          options.learning_rate, options.weight_decay, options.groups, options.groups_only),
      momentum_(options.momentum),
      nesterov_(options.nesterov) {}

std::vector<const char*> Sgd::states() const {
  return momentum_ != 0.0F ? std::vector<const char*>{"sgd.momentum"} : std::vector<const char*>{};
}

void Sgd::update(Runtime& runtime, const Piece& piece) {
  float* buffer = momentum_ != 0.0F
                      ? runtime.state("sgd.momentum", piece.bucket).data() + piece.offset
                      : nullptr;
  for (std::size_t i = 0; i < piece.numel; ++i) {
    float d = piece.gradients[i];
    if (piece.weight_decay != 0.0F) {
      d = d + piece.weight_decay * piece.weights[i];
    }
    if (buffer != nullptr) {
      buffer[i] = momentum_ * buffer[i] + d;
      d = nesterov_ ? d + momentum_ * buffer[i] : buffer[i];
    }
    piece.weights[i] = piece.weights[i] - piece.learning_rate * d;
  }
}

AdamW::AdamW(const AdamWOptions& options)
    : ShardedOptimizer(
          options.learning_rate, options.weight_decay, options.groups, options.groups_only),
      beta1_(options.beta1),
      beta2_(options.beta2),
      epsilon_(options.epsilon) {}

void AdamW::update(Runtime& runtime, const Piece& piece) {
  const auto t = static_cast<double>(piece.step);
  const auto c1 = static_cast<float>(1.0 - std::pow(static_cast<double>(beta1_), t));
  const auto c2 = static_cast<float>(1.0 - std::pow(static_cast<double>(beta2_), t));
  const float beta1 = beta1_;
  const float beta2 = beta2_;
  float* m = runtime.state("adamw.m", piece.bucket).data() + piece.offset;
  float* v = runtime.state("adamw.v", piece.bucket).data() + piece.offset;
  for (std::size_t i = 0; i < piece.numel; ++i) {
    const float g = piece.gradients[i];
    const float p = piece.weights[i];
    m[i] = beta1 * m[i] + (1.0F - beta1) * g;
    v[i] = beta2 * v[i] + (1.0F - beta2) * (g * g);
    const float direction = (m[i] / c1) / (std::sqrt(v[i] / c2) + epsilon_);
    piece.weights[i] = p - piece.learning_rate * (direction + piece.weight_decay * p);
  }
}

}  // namespace troupe
