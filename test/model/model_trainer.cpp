#include "model_trainer.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>

namespace troupe::test {

namespace {

constexpr const char* latest_update = "6: a use sees the parameters of the latest update";
constexpr const char* exactly_once = "7: every contribution reaches the main gradient once";
constexpr const char* equals_unsharded = "9: sharded training equals unsharded training";

std::int64_t bytes_of(const TensorView& view) {
  return view.numel * static_cast<std::int64_t>(size_of(view.dtype));
}

}  // namespace

ModelTrainer::ModelTrainer(Simulation& simulation,
                           const ModelWorld& model_world,
                           const Expected& expected,
                           World& world,
                           bool shares_device)
    : simulation_(simulation),
      model_world_(model_world),
      expected_(expected),
      world_(world),
      rank_(world.rank()),
      shares_device_(shares_device),
      runtime_(world, model_world.model, model_world.options) {
  SimulatedDevice& device = simulation.device(rank_);
  if (model_world.worker_stream) {
    compute_streams_.fill(&device.create_simulated_stream("compute"));
    if (model_world.two_streams) {
      compute_streams_[1] = &device.create_simulated_stream("compute 2");
    }
  }
  if (model_world.worker_update) {
    update_stream_ = &device.create_simulated_stream("update");
    if (model_world.two_streams) {
      second_update_stream_ = &device.create_simulated_stream("update 2");
    }
  }
}

ModelTrainer::~ModelTrainer() {
  *alive_ = std::uncaught_exceptions() == 0;
}

void ModelTrainer::train(ModelTrainer* second) {
  const ScopesEnd own(*this);
  const ScopesEnd others(second != nullptr ? *second : *this);
  initialize();
  if (second != nullptr) {
    second->initialize();
  }
  while (advance()) {
    if (second != nullptr) {
      let_second_advance(*second);
    }
  }
  compare_parameters();
  if (second != nullptr) {
    while (second->advance()) {
    }
    second->compare_parameters();
  }
}

/// At places that all ranks come to with the same launches behind them.
void ModelTrainer::let_second_advance(ModelTrainer& second) {
  ++advances_;
  if (is_agreed(model_world_.options) && model_world_.ranks_differ()) {
    for (std::uint64_t i = 0; !in_batch_ && i < model_world_.second_every; ++i) {
      static_cast<void>(second.advance());
    }
  } else if (advances_ % model_world_.second_every == 0) {
    static_cast<void>(second.advance());
  }
}

void ModelTrainer::initialize() {
  runtime_.initialize([](ParameterView parameter) {
    for (std::size_t i = 0; i < parameter.data.size(); ++i) {
      parameter.data[i] = initial_value(parameter.name, i);
    }
  });
}

void ModelTrainer::compare_parameters() {
  for (const Parameter& parameter : runtime_.model().parameters()) {
    const std::vector<float> values = runtime_.full_parameter(parameter.full_name);
    if (values != expected_.weights.back()[parameter.id]) {
      simulation_.violated(equals_unsharded, "parameter " + parameter.full_name + " on rank " +
                                                 std::to_string(rank_));
    }
  }
}

bool ModelTrainer::advance() {
  if (step_ == model_world_.steps.size()) {
    return false;
  }
  const StepProgram& step = model_world_.steps[step_];
  if (batch_ == step.size()) {
    end_step();
    ++step_;
    batch_ = 0;
    return true;
  }
  if (!in_batch_) {
    begin_micro_batch();
  }
  if (op_ < step[batch_].size()) {
    operation(step[batch_][op_++]);
  }
  if (op_ == step[batch_].size()) {
    close_scopes();
    in_batch_ = false;
    op_ = 0;
    ++batch_;
  }
  return true;
}

void ModelTrainer::begin_micro_batch() {
  if (batch_ == 0) {
    simulation_.enter_section(rank_);
  }
  const MicroBatchProgram& program = model_world_.steps[step_][batch_];
  if (program.empty() || program.front().kind != Op::outside) {
    micro_batch_.emplace(runtime_.micro_batch());
  }
  activations_ = std::make_shared<Activations>();
  in_batch_ = true;
}

void ModelTrainer::close_scopes() {
  eval_.reset();
  while (!open_.empty()) {
    open_.pop_back();
  }
  micro_batch_.reset();
}

void ModelTrainer::end_step() {
  if (model_world_.all_reduce_each_step) {
    all_reduce(step_);
  }
  if (!model_world_.explore_update) {
    simulation_.leave_section(rank_);
  }
  runtime_.finish_gradients();
  if (!shares_device_ && simulation_.device(rank_).counters().gradient_bytes != 0) {
    simulation_.violated(
        exactly_once, "rank " + std::to_string(rank_) + " holds gradients after the end of a step");
  }
  update(step_);
  if (model_world_.update_again) {
    update_again();
  }
  ++version_;
  if (model_world_.explore_update) {
    simulation_.leave_section(rank_);
  }
}

/// Where faults of the trainer are.
void ModelTrainer::next_operation() {
  const PlannedFault& fault = model_world_.fault;
  if (fault.rank == rank_ && fault.at == operations_) {
    if (fault.kind == PlannedFault::Kind::exception) {
      throw std::runtime_error("planned exception");
    }
    if (fault.kind == PlannedFault::Kind::death) {
      simulation_.freeze(rank_);
    }
  }
  ++operations_;
}

void ModelTrainer::operation(const Op& op) {
  next_operation();
  compute_stream_ = compute_streams_[operations_ % 2];
  if (model_world_.reshard_every > 0 && operations_ % model_world_.reshard_every == 0) {
    runtime_.reshard();
  }
  const Data data{rank_, static_cast<int>(step_), static_cast<int>(batch_)};
  const auto unit = static_cast<UnitId>(op.unit);
  if (op.absent(rank_)) {
    leave_out(op);
    return;
  }
  switch (op.kind) {
    case Op::forward:
    case Op::begin_forward: {
      Use use = runtime_.forward(unit, compute_stream_);
      forward(use, op.unit, data, eval_.has_value());
      if (op.kind == Op::begin_forward) {
        open_.emplace_back(std::move(use));
      }
      break;
    }
    case Op::backward:
    case Op::begin_backward: {
      Use use = runtime_.backward(unit, compute_stream_);
      backward(use, op, data);
      if (op.kind == Op::begin_backward) {
        open_.emplace_back(std::move(use));
      }
      break;
    }
    case Op::end:
      open_.pop_back();
      break;
    case Op::begin_eval:
      eval_activations_ = std::make_shared<Activations>();
      eval_.emplace(runtime_.eval());
      break;
    case Op::end_eval:
      eval_.reset();
      break;
    case Op::outside:
      break;
  }
}

/// A use that this rank does not make. Only full sharding has to be told.
void ModelTrainer::leave_out(const Op& op) {
  if (!is_agreed(model_world_.options)) {
    runtime_.skip(static_cast<UnitId>(op.unit),
                  op.kind == Op::backward ? Pass::backward : Pass::forward);
  } else if (op.kind == Op::begin_forward || op.kind == Op::begin_backward) {
    open_.emplace_back();
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
    simulation_.violated(
        latest_update, "rank " + std::to_string(rank_) + " sees other values of '" +
                           runtime_.model().parameters()[parameter].full_name + "' than those of " +
                           std::to_string(version) + " updates");
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
           activations = activations_] {
            std::size_t i = 0;
            for (const Pair& pair : pairs) {
              compare(pair.parameter, pair.id, version);
              const std::vector<float> values = widened(pair.parameter);
              for (std::size_t j = 0; j < values.size(); ++j, ++i) {
                if (pair.gradient) {
                  const float g = activations->gradient(data, unit, i, values[j]);
                  float& out = pair.gradient->as<float>()[j];
                  out = pair.gradient->accumulate ? out + g : g;
                }
              }
            }
            activations->backward_done(unit);
          });
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
                    simulation_.violated(exactly_once,
                                         "rank " + std::to_string(rank_) + ", bucket " +
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
    simulation_.violated(equals_unsharded, "an all_reduce of the trainer's own is wrong on rank " +
                                               std::to_string(rank_));
  }
}

}  // namespace troupe::test
