#include "troupe/runtime/runtime.hpp"

#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace troupe {

void RuntimeImpl::note_step_end() {
  const RankState& state = rank.state();
  for (std::size_t op = 0; op < collective_count; ++op) {
    const std::uint64_t now = state.launches[op].load();
    launches_last_step_[op] = now - std::exchange(launches_at_step_[op], now);
    const std::uint64_t bytes = state.bytes_sent[op].load();
    bytes_last_step_[op] = bytes - std::exchange(bytes_at_step_[op], bytes);
  }
  const TrainerTime::Reading now = context.compute_log().read();
  time_last_step_ = between(step_began_.value_or(now), now);
  if (time_last_step_) {
    time_steps_ += *time_last_step_;
    ++steps_timed_;
  }
  if (RankTrace* const trace = rank.config().trace; trace != nullptr) {
    trace->add({.row = steps_row_,
                .what = "step",
                .label = std::to_string(steps),
                .begin = step_began_.value_or(now).time,
                .end = now.time});
  }
  step_began_ = now;
}

void RuntimeImpl::forget_step() {
  step_began_.reset();
  const RankState& state = rank.state();
  for (std::size_t op = 0; op < collective_count; ++op) {
    launches_at_step_[op] = state.launches[op].load();
    bytes_at_step_[op] = state.bytes_sent[op].load();
  }
}

std::vector<float> RuntimeImpl::full_parameter(std::string_view full_name) {
  const Call guard(*this, "Runtime::full_parameter");
  const Parameter& parameter = model.parameters()[model.parameter(full_name)];
  if (updating_) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "Runtime::full_parameter('" + parameter.full_name +
                         "') inside an update; end the update first"});
  }
  const BucketId bucket = plan.bucket_of[parameter.id];
  const Buffer full = gather_bucket(bucket);
  const auto& members = plan.buckets[bucket].parameters;
  const auto index =
      static_cast<std::size_t>(std::ranges::find(members, parameter.id) - members.begin());
  const float* first = full.as<float>() + layouts[bucket].parameters()[index].offset;
  return {first, first + parameter.numel};
}

ScheduleCounters RuntimeImpl::schedule() const {
  ScheduleCounters sum = schedule_before_;
  return sum += actors_->counters();
}

RuntimeImpl::MostHeld RuntimeImpl::most_held() const {
  return {std::max(most_held_before_.unsharded, actors_->unsharded().peak),
          std::max(most_held_before_.gradients, actors_->gradients().peak)};
}

Report RuntimeImpl::report() const {
  Report report;
  report.strategy = options.strategy;
  report.rank = context.rank();
  report.world_size = context.size();
  report.steps = steps;
  report.memory = {.main_weights = main_weights_.bytes(),
                   .main_gradients = main_gradients_.bytes(),
                   .parameter_slots = parameter_slots_.bytes(),
                   .gradient_slots = gradient_slots_memory_.bytes(),
                   .gradient_staging = gradient_staging_.bytes(),
                   .kept_parameters = kept_parameters_.bytes(),
                   .wide_shard = wide_shard_.bytes(),
                   .unsharded_peak = most_held().unsharded,
                   .gradients_peak = most_held().gradients};
  const auto bytes = [](std::int64_t numel, DType dtype) {
    return numel * static_cast<std::int64_t>(size_of(dtype));
  };
  std::int64_t trainable = 0;
  std::int64_t weights = 0;
  std::int64_t copies = 0;  // of parameters whose main weights are of another dtype
  for (const Parameter& parameter : model.parameters()) {
    const DType dtype = parameter.spec.dtype;
    trainable += parameter.spec.trainable ? parameter.numel : 0;
    weights += bytes(parameter.numel, weight_dtype(dtype));
    copies += dtype == weight_dtype(dtype) ? 0 : bytes(parameter.numel, dtype);
  }
  for (const auto& [name, buffers] : states) {
    for (const Buffer& buffer : buffers) {
      report.memory.optimizer += buffer.bytes();
    }
  }
  report.unsharded = {
      .main_weights = weights,
      .main_gradients = bytes(trainable, options.main_gradient_dtype),
      .parameter_slots = copies,
      .optimizer = bytes(trainable, DType::f32) * static_cast<std::int64_t>(states.size())};
  for (std::size_t op = 0; op < collective_count; ++op) {
    report.collectives[op] = rank.state().launches[op].load();
    report.bytes_sent[op] = rank.state().bytes_sent[op].load();
  }
  report.collectives_last_step = launches_last_step_;
  report.bytes_sent_last_step = bytes_last_step_;
  report.schedule = schedule();
  report.waited = rank.waited();
  report.time_last_step = time_last_step_;
  report.time_steps = time_steps_;
  report.steps_timed = steps_timed_;
  return report;
}

Runtime::Runtime(World& world, Model model, Options options)
    : impl_(std::make_shared<RuntimeImpl>(world, std::move(model), std::move(options))),
      exceptions_(std::uncaught_exceptions()) {}

Runtime::~Runtime() {
  RankContext& context = impl_->context;
  if (std::uncaught_exceptions() > exceptions_) {
    context.leave_behind(
        std::move(impl_));  // the world reports the exception first, then ends what is in flight
  } else {
    context.report_abandoned();
    impl_->report_deferred();
  }
}

void Runtime::initialize(const std::function<void(ParameterView)>& fill) {
  Update all = update();
  impl_->initialize(fill, all);
}

void Runtime::finish_gradients(float loss_scale) {
  if (const auto failure = impl_->finish_gradients(loss_scale)) {
    skip_update();  // the next step begins as if this one had not been
    throw Error(*failure);
  }
}

GradientNorm Runtime::gradient_norm() {
  return impl_->gradient_norm();
}

GradientNorm Runtime::clip_gradients(float max_norm) {
  return impl_->clip_gradients(max_norm);
}

Update Runtime::update(Stream* stream) {
  impl_->begin_update(stream);
  return {*this, *impl_, stream};
}

void Runtime::skip_update() {
  static_cast<void>(update());
}

void Runtime::set_trainable(const std::vector<std::string>& full_names, bool trainable) {
  impl_->require_between_steps("Runtime::set_trainable");
  Model changed = impl_->model;
  for (const std::string& name : full_names) {
    changed.set_trainable(changed.parameter(name), trainable);
  }
  const auto renewed =
      std::make_shared<RuntimeImpl>(impl_->world, std::move(changed), impl_->options);
  renewed->take_over(*impl_);
  impl_ = renewed;
}

void Runtime::abort_step(std::string_view reason) {
  impl_->context.abort_step(impl_->steps_kept() + 1, std::string(reason));
}

void Runtime::reshard() {
  impl_->reshard();
}

std::vector<float> Runtime::full_parameter(std::string_view full_name) {
  return impl_->full_parameter(full_name);
}

World& Runtime::world() {
  return impl_->world;
}
const Model& Runtime::model() const {
  return impl_->model;
}
const Options& Runtime::options() const {
  return impl_->options;
}
const BucketPlan& Runtime::bucket_plan() const {
  return impl_->plan;
}
const MemoryPlan& Runtime::memory_plan() const {
  return impl_->memory;
}
const BucketLayout& Runtime::layout(BucketId bucket) const {
  return impl_->layouts.at(bucket);
}
std::uint64_t Runtime::steps() const {
  return impl_->steps;
}
std::uint64_t Runtime::version(BucketId bucket) const {
  return impl_->versions.at(bucket);
}
bool Runtime::gradients_finished() const {
  return impl_->gradients_finished;
}
Report Runtime::report() const {
  return impl_->report();
}

std::span<float> Runtime::state(std::string_view name, BucketId bucket) {
  return impl_->state(name, bucket);
}

std::span<std::uint64_t> Runtime::counts(std::string_view name) {
  return impl_->counts.try_emplace(std::string(name), impl_->model.parameters().size())
      .first->second;
}

std::uint32_t Runtime::begin_use(UnitId unit, bool backward, Stream* stream) {
  return impl_->begin_use(unit, backward, stream);
}
void Runtime::skip_use(UnitId unit, bool backward) {
  impl_->skip_use(unit, backward);
}
void Runtime::begin_micro_batch(MicroBatchOptions options) {
  impl_->begin_micro_batch(options);
}
void Runtime::begin_eval() {
  impl_->begin_eval();
}
void Runtime::end_scope(ScopeId id) noexcept {
  impl_->end_scope(id);
}
void Runtime::abandon_scope(ScopeId id) noexcept {
  impl_->abandon_scope(id);
}
TensorView Runtime::parameter(std::uint32_t use, std::string_view name) const {
  return impl_->parameter(use, name);
}
GradientView Runtime::gradient(std::uint32_t use, std::string_view name) {
  return impl_->gradient(use, name);
}

}  // namespace troupe
