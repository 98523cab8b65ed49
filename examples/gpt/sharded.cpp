#include "sharded.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

namespace gpt {

namespace {

std::variant<troupe::AdamW, troupe::Sgd> make_optimizer(const OptimizerOptions& options) {
  if (options.kind == OptimizerOptions::Kind::sgd) {
    return troupe::Sgd({.learning_rate = options.lr});
  }
  return troupe::AdamW({.learning_rate = options.lr,
                        .beta1 = options.beta1,
                        .beta2 = options.beta2,
                        .epsilon = options.eps,
                        .weight_decay = options.weight_decay});
}

/// Room for the largest unit, each parameter on a cache line of its own.
int64_t unit_numel_max(std::span<const UnitSpec> specs) {
  int64_t largest = 0;
  for (const UnitSpec& unit : specs) {
    int64_t sum = 0;
    for (const ParameterSpec& parameter : unit.parameters) {
      sum += padded(numel(parameter));
    }
    largest = std::max(largest, sum);
  }
  return largest;
}

}  // namespace

troupe::Model sharded_model(const Config& config, bool bf16_parameters) {
  troupe::Model model;
  for (const UnitSpec& unit : units(config)) {
    const troupe::UnitId id = model.add_unit(unit.name);
    for (const ParameterSpec& parameter : unit.parameters) {
      model.add_parameter(id,
                          {.name = parameter.name,
                           .shape = parameter.shape,
                           .dtype = bf16_parameters ? troupe::DType::bf16 : troupe::DType::f32});
    }
  }
  return model;
}

ShardedTrainer::ShardedTrainer(troupe::World& world, const Options& options, const Corpus& corpus)
    : options_(options),
      specs_(units(options.config)),
      world_(world),
      corpus_(corpus),
      runtime_(
          world, sharded_model(options.config, options.bf16_parameters), runtime_options(options)),
      optimizer_(make_optimizer(options.optimizer)),
      network_(options.config),
      tokens_(static_cast<size_t>(options.config.batch * options.config.sequence)),
      targets_(tokens_.size()),
      widened_(options.bf16_parameters ? unit_numel_max(specs_) : 0),
      own_losses_(static_cast<size_t>(options.micro_batches)),
      losses_(own_losses_.size() * static_cast<size_t>(world.size())) {
  initialize();
}

void ShardedTrainer::initialize() {
  std::vector<const ParameterSpec*> by_id;
  for (const UnitSpec& unit : specs_) {
    for (const ParameterSpec& parameter : unit.parameters) {
      by_id.push_back(&parameter);
    }
  }
  runtime_.initialize([&](const troupe::ParameterView& view) {
    const std::string name(view.name);
    gpt::initialize(*by_id[runtime_.model().parameter(name)], name, options_.seed, view.data);
  });
}

double ShardedTrainer::step() {
  for (int64_t index = 0; index < options_.micro_batches; ++index) {
    own_losses_[static_cast<size_t>(index)] = micro_batch(index);
  }
  runtime_.finish_gradients();
  std::visit([this](auto& optimizer) { optimizer.step(runtime_); }, optimizer_);
  ++step_count_;
  world_.all_gather(own_losses_, losses_);
  return mean_loss();
}

float ShardedTrainer::micro_batch(int64_t index) {
  corpus_.batch(step_count_, index, world_.rank(), world_.size(), options_.seed, tokens_, targets_);
  network_.set_batch(tokens_, targets_);
  const troupe::MicroBatch scope = runtime_.micro_batch();
  for (size_t unit = 0; unit < specs_.size(); ++unit) {
    const troupe::Use use = runtime_.forward(static_cast<troupe::UnitId>(unit));
    network_.forward(unit, weights_of(use, unit));
  }
  for (size_t unit = specs_.size(); unit-- > 0;) {
    const troupe::Use use = runtime_.backward(static_cast<troupe::UnitId>(unit));
    network_.backward(unit, weights_of(use, unit), gradients_of(use, unit));
  }
  return network_.loss();
}

std::span<const float* const> ShardedTrainer::weights_of(const troupe::Use& use, size_t unit) {
  weights_.clear();
  float* free = widened_.data();
  for (const ParameterSpec& parameter : specs_[unit].parameters) {
    const troupe::TensorView view = use[parameter.name];
    if (!options_.bf16_parameters) {
      weights_.push_back(view.as<float>().data());
      continue;
    }
    std::ranges::transform(view.as<troupe::BFloat16>(), free, troupe::to_float);
    weights_.push_back(free);
    free += padded(view.numel);
  }
  return weights_;
}

std::span<const GradientOut> ShardedTrainer::gradients_of(const troupe::Use& use, size_t unit) {
  gradients_.clear();
  for (const ParameterSpec& parameter : specs_[unit].parameters) {
    const troupe::GradientView view = use.gradient(parameter.name);
    gradients_.push_back({.data = view.as<float>().data(), .accumulate = view.accumulate});
  }
  return gradients_;
}

/// Summed in the reference's order.
double ShardedTrainer::mean_loss() const {
  const size_t micro_batches = own_losses_.size();
  double sum = 0;
  for (size_t index = 0; index < micro_batches; ++index) {
    double micro_batch_sum = 0;
    for (size_t i = index; i < losses_.size(); i += micro_batches) {
      micro_batch_sum += static_cast<double>(losses_[i]);
    }
    sum += micro_batch_sum;
  }
  return sum / static_cast<double>(losses_.size());
}

std::vector<float> ShardedTrainer::weight(size_t unit, size_t parameter) {
  return runtime_.full_parameter(full_name(specs_[unit], specs_[unit].parameters[parameter]));
}

void ShardedTrainer::save() {
  troupe::save(runtime_, options_.save,
               {.blob = describe_run(options_, corpus_, mixed_), .before = options_.before_file});
}

Resumed ShardedTrainer::resume() {
  Resumed resumed = gpt::resume(runtime_, options_, corpus_);
  step_count_ = resumed.step;
  mixed_ = resumed.mixed || !resumed.goes_on(options_);
  return resumed;
}

namespace {

/// Of all parameters, by unit. Collective.
std::vector<std::vector<std::vector<float>>> all_weights(ShardedTrainer& trainer,
                                                         const Config& config) {
  std::vector<std::vector<std::vector<float>>> all;
  const std::vector<UnitSpec> specs = units(config);
  for (size_t unit = 0; unit < specs.size(); ++unit) {
    std::vector<std::vector<float>>& weights = all.emplace_back();
    weights.reserve(specs[unit].parameters.size());
    for (size_t i = 0; i < specs[unit].parameters.size(); ++i) {
      weights.push_back(trainer.weight(unit, i));
    }
  }
  return all;
}

/// Those of all ranks, in a world whose ranks do not share memory. Collective.
std::vector<troupe::Report> all_reports(troupe::World& world, const troupe::Report& own) {
  static_assert(std::is_trivially_copyable_v<troupe::Report>);
  // As bits; nothing computes with them.
  std::vector<float> sent((sizeof own + sizeof(float) - 1) / sizeof(float));
  std::vector<float> received(sent.size() * static_cast<size_t>(world.size()));
  std::memcpy(sent.data(), &own, sizeof own);
  world.all_gather(sent, received);
  std::vector<troupe::Report> reports(static_cast<size_t>(world.size()));
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    std::memcpy(static_cast<void*>(&reports[rank]), &received[rank * sent.size()], sizeof own);
  }
  return reports;
}

}  // namespace

ShardedRun train_sharded(const Options& options,
                         const Corpus& corpus,
                         const std::function<void(const StepRecord&)>& on_step,
                         const troupe::WorldOptions& world_options) {
  ShardedRun run;
  run.reports.resize(static_cast<size_t>(options.ranks));
  std::optional<troupe::Failure> refused;
  const auto body = [&](troupe::World& world) {
    const bool first = options.join || world.rank() == 0;  // of this process
    ShardedTrainer trainer(world, options, corpus);
    if (!options.resume.empty()) {
      std::optional<Resumed> resumed;
      try {
        resumed = trainer.resume();
      } catch (const troupe::Error& error) {
        if (first) {
          refused = error.failure();
        }
        return;  // as all ranks do: nothing has failed
      }
      auto weights = resumed->goes_on(options) ? decltype(run.weights_resumed){}
                                               : all_weights(trainer, options.config);
      if (first) {
        run.resumed = *std::move(resumed);
        run.weights_resumed = std::move(weights);
      }
    }
    // Every rank has the same loss, so all leave the loop together.
    double loss = 0;
    while (trainer.step_count() < options.steps && std::isfinite(loss)) {
      const auto begin = std::chrono::steady_clock::now();
      loss = trainer.step();
      const StepRecord record{loss, std::chrono::steady_clock::now() - begin, trainer.step_count()};
      if (first) {
        run.steps.push_back(record);
      }
      if (first && on_step) {
        on_step(record);
      }
      const int64_t done = trainer.step_count();
      const bool stop = options.join && done < options.steps && world.stop_requested();
      const bool due = options.save_every > 0 && done % options.save_every == 0;
      if (!options.save.empty() && (due || stop || done == options.steps) && std::isfinite(loss)) {
        trainer.save();
        run.saves += first ? 1 : 0;
      }
      if (stop) {
        run.stopped = true;
        return;
      }
    }
    if (options.join) {
      run.reports = all_reports(world, trainer.report());
    } else {
      run.reports[static_cast<size_t>(world.rank())] = trainer.report();
    }
    auto weights = all_weights(trainer, options.config);
    if (world.rank() == 0) {
      run.weights = std::move(weights);
    }
  };
  if (options.join) {
    troupe::World::join(*options.join, world_options).run(body);
  } else {
    troupe::World::local(options.ranks, world_options).run(body);
  }
  if (refused) {
    throw troupe::Error(*refused);
  }
  return run;
}

}  // namespace gpt
