/// The toy on a Runtime: the same programs as the reference, on the calling thread or on a worker
/// stream.
#pragma once

#include "reference.hpp"
#include "troupe/comm/host_stream.hpp"
#include "troupe/runtime/optimizer.hpp"
#include "troupe/runtime/runtime.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::test {

/// In fp32, whatever the parameter's dtype.
inline std::vector<float> widened(const TensorView& view) {
  std::vector<float> values;
  if (view.dtype == DType::f32) {
    const auto source = view.as<float>();
    values.assign(source.begin(), source.end());
  } else {
    for (const BFloat16 value : view.as<BFloat16>()) {
      values.push_back(to_float(value));
    }
  }
  return values;
}

struct ToyTrainer {
  Runtime& runtime;
  int rank = 0;
  HostStream* stream = nullptr;                ///< null: compute on the calling thread
  std::function<void()> pause = {};            ///< called between events, for random delays
  std::function<void(const Op&)> before = {};  ///< called before each op is carried out
  std::function<void()> between = {};          ///< called after each micro-batch

  void initialize() const {
    runtime.initialize([&](ParameterView parameter) {
      const Model& model = runtime.model();
      const std::string& group = model.parameters()[model.parameter(parameter.name)].spec.group;
      const int expert = group == expert_group ? rank % runtime.options().mesh.ep : 0;
      for (std::size_t i = 0; i < parameter.data.size(); ++i) {
        parameter.data[i] = initial_value(name_of_copy(parameter.name, expert), i);
      }
    });
  }

  /// One micro-batch; returns this rank's last forward state.
  float micro_batch(const MicroBatchProgram& program, const Data& data) {
    std::optional<MicroBatch> scope;
    if (opens_micro_batch(program)) {
      scope.emplace(runtime.micro_batch({.reduce = reduces(program)}));
    }
    auto activations = std::make_shared<Activations>();
    auto eval_activations = std::make_shared<Activations>();
    auto loss = std::make_shared<float>(0.0F);
    std::deque<std::optional<Use>> open;  // of those left out, nothing
    std::optional<Eval> eval;
    for (const Op& op : program) {
      if (before) {
        before(op);
      }
      if (op.absent(rank)) {
        leave_out(op);
        if (op.kind == Op::begin_forward || op.kind == Op::begin_backward) {
          open.emplace_back();
        }
        continue;
      }
      switch (op.kind) {
        case Op::forward:
        case Op::begin_forward: {
          Use use = runtime.forward(static_cast<UnitId>(op.unit), stream);
          forward(use, op.unit, data, eval ? eval_activations : activations, loss);
          if (op.kind == Op::begin_forward) {
            open.push_back(std::move(use));
          }
          break;
        }
        case Op::backward:
        case Op::begin_backward: {
          Use use = runtime.backward(static_cast<UnitId>(op.unit), stream);
          backward(use, op, data, activations);
          if (op.kind == Op::begin_backward) {
            open.push_back(std::move(use));
          }
          break;
        }
        case Op::end:
          open.pop_back();
          break;
        case Op::begin_eval:
          compute([=] { *eval_activations = {}; });
          eval.emplace(runtime.eval());
          break;
        case Op::end_eval:
          eval.reset();
          break;
        case Op::outside:
        case Op::not_reduced:
          break;
      }
      if (pause) {
        pause();
      }
    }
    scope.reset();
    wait_for_stream();
    if (between) {
      between();
    }
    return *loss;
  }

  float step(const StepProgram& program, int index) {
    float loss = 0.0F;
    losses.clear();
    for (std::size_t batch = 0; batch < program.size(); ++batch) {
      const float own = micro_batch(program[batch], {rank, index, static_cast<int>(batch)});
      losses.push_back(own);
      loss += own;
    }
    runtime.finish_gradients();
    return loss;
  }

  std::vector<float> losses{};  ///< of the last step, per micro-batch

 private:
  /// Says so where that is needed.
  void leave_out(const Op& op) const {
    if (runtime.options().strategy == Strategy::full_shard) {
      const bool backward = op.kind == Op::backward || op.kind == Op::begin_backward;
      runtime.skip(static_cast<UnitId>(op.unit), backward ? Pass::backward : Pass::forward);
    }
  }

  template <class Work>
  void compute(Work work) {
    if (stream == nullptr) {
      work();
    } else {
      stream->run(std::move(work));
    }
  }

  /// A trainer that reads results on the host waits for its own stream.
  void wait_for_stream() {
    if (stream != nullptr) {
      FutexWaiter waiter;
      const Event end = stream->record();
      while (!end.done() && !stream->failure()) {
        static_cast<void>(waiter.wait([&] { return end.done(); },
                                      Clock::steady().now() + std::chrono::milliseconds{1}));
      }
    }
  }

  void forward(const Use& use,
               std::size_t unit,
               const Data& data,
               std::shared_ptr<Activations> activations,
               std::shared_ptr<float> loss) {
    std::vector<TensorView> views;
    for (const UnitParameter& each : runtime.model().units()[unit].parameters) {
      views.push_back(use[each.name]);
    }
    compute([=] {
      std::vector<std::vector<float>> values;
      for (const TensorView& view : views) {
        values.push_back(widened(view));
      }
      const std::vector<std::span<const float>> spans(values.begin(), values.end());
      *loss = activations->forward(data, unit, spans);
    });
  }

  void backward(const Use& use,
                const Op& op,
                const Data& data,
                std::shared_ptr<Activations> activations) {
    struct Pair {
      TensorView parameter;
      std::optional<GradientView> gradient;
    };
    std::vector<Pair> pairs;
    for (const UnitParameter& each : runtime.model().units()[op.unit].parameters) {
      Pair pair{use[each.name], {}};
      if (runtime.model().parameters()[each.parameter].spec.trainable &&
          op.touches(pairs.size(), data.rank)) {
        pair.gradient = use.gradient(each.name);
      }
      pairs.push_back(pair);
    }
    compute([=, unit = op.unit] {
      std::size_t i = 0;
      for (const Pair& pair : pairs) {
        const std::vector<float> values = widened(pair.parameter);
        for (std::size_t j = 0; j < values.size(); ++j, ++i) {
          if (!pair.gradient) {
            continue;
          }
          const float g = activations->gradient(data, unit, i, values[j]);
          if (pair.gradient->dtype == DType::f32) {
            float& out = pair.gradient->as<float>()[j];
            out = pair.gradient->accumulate ? out + g : g;
          } else {
            BFloat16& out = pair.gradient->as<BFloat16>()[j];
            out = to_bfloat16(pair.gradient->accumulate ? to_float(out) + g : g);
          }
        }
      }
      activations->backward_done(unit);
    });
  }
};

/// The optimizers of the reference, as sharded ones.
struct ToyOptimizer {
  OptimizerKind kind = OptimizerKind::sgd;
  Sgd sgd{{.learning_rate = 0.125F}};
  AdamW adamw{{.learning_rate = 0.01F,
               .beta1 = 0.9F,
               .beta2 = 0.999F,
               .epsilon = 1e-8F,
               .weight_decay = 0.01F}};

  void step(Runtime& runtime) {
    if (kind == OptimizerKind::sgd) {
      sgd.step(runtime);
    } else {
      adamw.step(runtime);
    }
  }
};

}  // namespace troupe::test
