#include "model_trainer.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

namespace troupe::test {

namespace {

constexpr const char* exactly_once = "7: every contribution reaches the main gradient once";
constexpr const char* equals_unsharded = "9: sharded training equals unsharded training";

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
  second_ = second;
  for (bool begun = false;;) {
    try {
      const ScopesEnd own(*this);
      const ScopesEnd others(second != nullptr ? *second : *this);
      if (!std::exchange(begun, true)) {
        initialize_all();
      }
      while (advance()) {
        let_second_advance();
      }
      compare_parameters();
      if (second != nullptr) {
        while (second->advance()) {
        }
        second->compare_parameters();
      }
      return;
    } catch (const std::exception& exception) {
      if (!model_world_.gives_up(step_)) {
        throw;
      }
      give_up(exception);
    }
  }
}

/// Of the first step that is given up a rank hears in that step at the latest: all have made the
/// updates before it.
void ModelTrainer::give_up(const std::exception& why) {
  runtime_.abort_step(why.what());
  ++step_;
  ++version_;  // whose values are the same
  batch_ = 0;
  op_ = 0;
  in_batch_ = false;
  operations_ = 0;  // the same on all ranks again
  step_operations_ = 0;
}

void ModelTrainer::may_give_up(bool inside) {
  for (const GivenUp& each : model_world_.given_up) {
    if (each.step == step_ && each.rank == rank_ && each.at == step_operations_ &&
        each.inside == inside) {
      throw std::runtime_error("gives up");
    }
  }
}

void ModelTrainer::initialize_all() {
  if (second_ != nullptr && model_world_.disagrees(rank_)) {
    second_->initialize();
    initialize();
  } else {
    initialize();
    if (second_ != nullptr) {
      second_->initialize();
    }
  }
}

/// At places that all ranks come to with the same launches behind them.
void ModelTrainer::let_second_advance() {
  ++advances_;
  if (second_ == nullptr) {
    return;
  }
  const std::uint64_t every = model_world_.second_every + (model_world_.disagrees(rank_) ? 1 : 0);
  if (is_agreed(model_world_.options) && model_world_.ranks_differ()) {
    for (std::uint64_t i = 0; !in_batch_ && i < every; ++i) {
      static_cast<void>(second_->advance());
    }
  } else if (advances_ % every == 0) {
    static_cast<void>(second_->advance());
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
      wrong(equals_unsharded,
            "parameter " + parameter.full_name + " on rank " + std::to_string(rank_));
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
  if (may_update(step[batch_])) {
    update_again();
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
  if (opens_micro_batch(program)) {
    micro_batch_.emplace(runtime_.micro_batch({.reduce = reduces(program)}));
  }
  activations_ = std::make_shared<Activations>();
  in_batch_ = true;
}

/// Inside a micro-batch: before any gradient, with none left by those before it, and while nothing
/// is open.
bool ModelTrainer::may_update(const MicroBatchProgram& program) const {
  const auto is_forward = [](const Op& op) {
    return op.kind == Op::forward || op.kind == Op::not_reduced;
  };
  const StepProgram& step = model_world_.steps[step_];
  for (std::size_t before = batch_; before > 0; --before) {
    if (opens_micro_batch(step[before - 1])) {
      if (!reduces(step[before - 1])) {
        return false;
      }
      break;
    }
  }
  return micro_batch_ && op_ > 0 && op_ == model_world_.update_before &&
         std::all_of(program.begin(), program.begin() + static_cast<std::ptrdiff_t>(op_),
                     is_forward);
}

void ModelTrainer::close_scopes() {
  eval_.reset();
  while (!open_.empty()) {
    open_.pop_back();
  }
  micro_batch_.reset();
}

void ModelTrainer::end_step() {
  for (const GivenUp& each : model_world_.given_up) {
    if (each.step == step_ && each.rank == rank_) {
      throw std::runtime_error("gives up at the end");  // it has not come to its operation
    }
  }
  step_operations_ = 0;
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
  if (!model_world_.given_up.empty()) {
    world_.barrier();  // nobody updates what another one gives up
  }
  if (model_world_.overflow_rank.empty() || measure_gradients(step_)) {
    update(step_);
  } else {
    runtime_.skip_update();
  }
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
  may_give_up(false);
  ++operations_;
  ++step_operations_;
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
      may_give_up(true);
      if (op.kind == Op::begin_forward) {
        open_.emplace_back(std::move(use));
      }
      break;
    }
    case Op::backward:
    case Op::begin_backward: {
      Use use = runtime_.backward(unit, compute_stream_);
      backward(use, op, data);
      may_give_up(true);
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
    case Op::not_reduced:
      break;
  }
}

/// A use that this rank does not make. Only full sharding has to be told.
void ModelTrainer::leave_out(const Op& op) {
  if (!is_agreed(model_world_.options) && !model_world_.disagrees(rank_)) {
    runtime_.skip(static_cast<UnitId>(op.unit),
                  op.kind == Op::backward ? Pass::backward : Pass::forward);
  } else if (op.kind == Op::begin_forward || op.kind == Op::begin_backward) {
    open_.emplace_back();
  }
}

}  // namespace troupe::test
