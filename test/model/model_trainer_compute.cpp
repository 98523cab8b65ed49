// What a trainer computes in a use and in an update, and what it finds there.
#include "model_trainer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe::test {

namespace {

constexpr const char* latest_update = "6: a use sees the parameters of the latest update";
constexpr const char* exactly_once = "7: every contribution reaches the main gradient once";
constexpr const char* equals_unsharded = "9: sharded training equals unsharded training";

std::int64_t bytes_of(const TensorView& view) {
  return view.numel * static_cast<std::int64_t>(size_of(view.dtype));
}

}  // namespace

void ModelTrainer::wrong(const char* invariant, const std::string& text) {
  if (model_world_.values_known()) {
    simulation_.violated(invariant, text);
  }
}

/// On the trainer's thread its time passes here; on a stream it is issued.
void ModelTrainer::compute(const char* what,
                           std::uint64_t number,
                           SimulatedStream* stream,
                           std::vector<Access> accesses,
                           std::function<void()> work) {
  const bool is_update = *what != 'f' && *what != 'b';
  const Duration time = std::chrono::microseconds{
      simulation_.chooser().draw(is_update ? model_world_.update_time : model_world_.compute_time)};
  if (stream != nullptr) {
    if (!is_update) {
      stream->wait(computed_);  // maybe on the other stream: each needs what came before
    }
    stream->run(what, number, time, std::move(accesses), [alive = alive_, work = std::move(work)] {
      if (*alive) {
        work();
      }
    });
    if (!is_update) {
      computed_ = stream->record();
    }
    return;
  }
  const AccessLog::Id id = simulation_.accesses().begin({what, number, rank_}, std::move(accesses));
  if (time > Duration::zero()) {
    simulation_.sleep(rank_, time);
  }
  simulation_.accesses().end(id);
  work();
}

void ModelTrainer::compare(const TensorView& view, ParameterId parameter, std::size_t version) {
  const std::vector<float>& right = expected_.weights[version][parameter];
  const std::vector<float> values = widened(view);
  const bool narrow = view.dtype != DType::f32;
  const auto same = [narrow](float value, float expected) {
    return value == (narrow ? through_bf16(expected) : expected);
  };
  if (!std::ranges::equal(values, right, same)) {
    wrong(latest_update, "rank " + std::to_string(rank_) + " sees other values of '" +
                             runtime_.model().parameters()[parameter].full_name +
                             "' than those of " + std::to_string(version) + " updates");
  }
}

void ModelTrainer::forward(const Use& use, std::size_t unit, const Data& data, bool in_eval) {
  std::vector<TensorView> views;
  std::vector<Access> accesses;
  const std::vector<UnitParameter>& parameters = runtime_.model().units()[unit].parameters;
  for (const UnitParameter& each : parameters) {
    views.push_back(use[each.name]);
    accesses.push_back({views.back().data, bytes_of(views.back()), false});
  }
  compute("forward of unit", unit, compute_stream_, std::move(accesses),
          [this, unit, data, views, &parameters, version = version_,
           activations = in_eval ? eval_activations_ : activations_] {
            std::vector<std::vector<float>> values;
            for (std::size_t i = 0; i < views.size(); ++i) {
              compare(views[i], parameters[i].parameter, version);
              values.push_back(widened(views[i]));
            }
            const std::vector<std::span<const float>> spans(values.begin(), values.end());
            static_cast<void>(activations->forward(data, unit, spans));
          });
}

void ModelTrainer::backward(const Use& use, const Op& op, const Data& data) {
  struct Pair {
    TensorView parameter;
    ParameterId id = 0;
    std::optional<GradientView> gradient;
  };
  std::vector<Pair> pairs;
  std::vector<Access> accesses;
  for (const UnitParameter& each : runtime_.model().units()[op.unit].parameters) {
    Pair pair{use[each.name], each.parameter, {}};
    accesses.push_back({pair.parameter.data, bytes_of(pair.parameter), false});
    if (runtime_.model().parameters()[each.parameter].spec.trainable &&
        op.touches(pairs.size(), rank_)) {
      pair.gradient = use.gradient(each.name);
      accesses.push_back(
          {pair.gradient->data,
           pair.gradient->numel * static_cast<std::int64_t>(size_of(pair.gradient->dtype)), true});
    }
    pairs.push_back(pair);
  }
  compute("backward of unit", op.unit, compute_stream_, std::move(accesses),
          [this, unit = op.unit, data, pairs = std::move(pairs), version = version_,
           activations = activations_,
           overflow = model_world_.overflows(step_) && model_world_.overflow_rank[step_] == rank_] {
            std::size_t i = 0;
            for (const Pair& pair : pairs) {
              compare(pair.parameter, pair.id, version);
              const std::vector<float> values = widened(pair.parameter);
              for (std::size_t j = 0; j < values.size(); ++j, ++i) {
                if (pair.gradient) {
                  const float g = activations->gradient(data, unit, i, values[j]);
                  float& out = pair.gradient->as<float>()[j];
                  out = pair.gradient->accumulate ? out + g : g;
                  out = overflow ? std::numeric_limits<float>::infinity() : out;
                }
              }
            }
            activations->backward_done(unit);
          });
}

/// Whether they may be used. The verdict and the norm are the same on all ranks.
bool ModelTrainer::measure_gradients(std::size_t step) {
  const GradientNorm found = runtime_.gradient_norm();
  const bool finite = !model_world_.overflows(step);
  double squares = 0;
  for (const std::vector<float>& values : expected_.gradients[step]) {
    for (const float g : values) {
      squares += static_cast<double>(g) * static_cast<double>(g);
    }
  }
  const double norm = std::sqrt(squares);
  if (found.finite != finite) {
    wrong(exactly_once, "rank " + std::to_string(rank_) + ", step " + std::to_string(step) +
                            ": finds gradients " + (finite ? "not " : "") + "finite");
  } else if (finite && std::abs(found.norm - norm) > 1e-12 * norm) {
    wrong(exactly_once, "rank " + std::to_string(rank_) + ", step " + std::to_string(step) +
                            ": the norm is " + std::to_string(found.norm) + ", not " +
                            std::to_string(norm));
  }
  return found.finite;
}

bool ModelTrainer::touches(std::size_t bucket) const {
  return model_world_.update_frozen || runtime_.bucket_plan().buckets[bucket].trainable;
}

/// p = p − 0.125 · g, as the reference has it; compares the gradients first.
void ModelTrainer::update(std::size_t step) {
  SimulatedStream* const stream =
      !model_world_.mixed_updates || step % 2 == 0 ? update_stream_ : nullptr;
  Update update = runtime_.update(stream);
  for (std::size_t i = 0; i < update.shard_count(); ++i) {
    const std::size_t index = model_world_.update_backwards ? update.shard_count() - 1 - i : i;
    if (!touches(index)) {
      update.finish(static_cast<BucketId>(index));
      continue;
    }
    const ShardView shard = update.shard(index);
    if (shard.trainable) {
      const auto bytes = static_cast<std::int64_t>(shard.weights.size_bytes());
      compute("update of bucket", shard.bucket, stream,
              {{shard.weights.data(), bytes, true}, {shard.gradients.data(), bytes, false}},
              [this, step, shard] {
                const auto& members = runtime_.bucket_plan().buckets[shard.bucket].parameters;
                for (const ShardPiece& piece : shard.pieces) {
                  const auto& right = expected_.gradients[step][members[piece.index]];
                  if (!std::equal(shard.gradients.begin() + piece.shard_offset,
                                  shard.gradients.begin() + piece.shard_offset + piece.numel,
                                  right.begin() + piece.parameter_offset)) {
                    wrong(exactly_once, "rank " + std::to_string(rank_) + ", bucket " +
                                            std::to_string(shard.bucket) + ", step " +
                                            std::to_string(step) +
                                            ": the gradient is not the sum of all contributions");
                  }
                }
                for (std::size_t j = 0; j < shard.weights.size(); ++j) {
                  shard.weights[j] = shard.weights[j] - 0.125F * shard.gradients[j];
                }
              });
    }
    update.finish(static_cast<BucketId>(index));
    let_second_advance();
  }
}

/// Doubles and halves every weight, as somebody might who looks at them in between.
void ModelTrainer::update_again() {
  Update update = runtime_.update(second_update_stream_);
  for (std::size_t index = 0; index < update.shard_count(); ++index) {
    if (!touches(index)) {
      continue;
    }
    const ShardView shard = update.shard(index);
    compute("second update of bucket", shard.bucket, second_update_stream_,
            {{shard.weights.data(), static_cast<std::int64_t>(shard.weights.size_bytes()), true}},
            [shard] {
              for (float& weight : shard.weights) {
                weight = weight * 2.0F * 0.5F;
              }
            });
  }
}

void ModelTrainer::all_reduce(std::size_t step) {
  const float own = static_cast<float>(rank_ + 1) * static_cast<float>(step + 1);
  std::vector<float> values{own, 2.0F * own};
  world_.all_reduce(values);
  const float sum =
      static_cast<float>(world_.size() * (world_.size() + 1) / 2) * static_cast<float>(step + 1);
  if (values != std::vector<float>{sum, 2.0F * sum}) {
    wrong(equals_unsharded,
          "an all_reduce of the trainer's own is wrong on rank " + std::to_string(rank_));
  }
}

}  // namespace troupe::test
