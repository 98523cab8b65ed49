/// Unsharded training of the toy, written without anything of the runtime: full parameters, plain
/// loops. A parameter is reduced when its backwards have caught up with its forwards
/// (recomputations and eval not counted), else at the end of the micro-batch. Each reduce adds what
/// the ranks have contributed since the last one, in rank order; the total adds the reduces in
/// order. Divides once, updates. With several replicas (HSDP) each replica's ranks are added first,
/// then the replicas, in order: of every reduce, or of the step's totals. A rank that leaves a use
/// out computes nothing there; for the count of forwards and backwards it is as if it did.
#pragma once

#include "toy_model.hpp"

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace troupe::test {

enum class OptimizerKind { sgd, adamw };

struct ReferenceResult {
  std::map<std::string, std::vector<float>> parameters;
  std::vector<float> losses;  ///< per step: the ranks' states, summed in rank order
};

/// bf16 rounding of the weights that compute sees, by bits, not by the library's function.
inline float through_bf16(float value) {
  std::uint32_t bits = 0;
  static_assert(sizeof bits == sizeof value);
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t lower = bits & 0xffffU;
  bits &= 0xffff0000U;
  if (lower > 0x8000U || (lower == 0x8000U && (bits & 0x10000U) != 0)) {
    bits += 0x10000U;
  }
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

struct SumOrder {
  int replicas = 1;
  bool at_step_end = false;
  bool once = false;  ///< one reduce in each micro-batch, of all that it contributes
};

class Reference {
 public:
  Reference(const Model& model, int ranks, OptimizerKind optimizer, SumOrder order = {})
      : model_(model), ranks_(ranks), optimizer_(optimizer), order_(order) {
    for (const Parameter& parameter : model.parameters()) {
      std::vector<float> values(static_cast<std::size_t>(parameter.numel));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = initial_value(parameter.full_name, i);
      }
      weights_.push_back(values);
      m_.emplace_back(values.size(), 0.0F);
      v_.emplace_back(values.size(), 0.0F);
    }
  }

  ReferenceResult train(const std::vector<StepProgram>& steps) {
    ReferenceResult result;
    for (std::size_t index = 0; index < steps.size(); ++index) {
      result.losses.push_back(step(steps[index], static_cast<int>(index)));
    }
    for (const Parameter& parameter : model_.parameters()) {
      result.parameters[parameter.full_name] = weights_[parameter.id];
    }
    return result;
  }

  /// One step with its update; returns the loss.
  float step(const StepProgram& program, int index) {
    const float loss = train_step(program, index);
    update(gradients_);
    return loss;
  }
  /// Per parameter: the weights now.
  const std::vector<std::vector<float>>& weights() const { return weights_; }
  /// Per parameter: the averaged gradients of the last step.
  const std::vector<std::vector<float>>& gradients() const { return gradients_; }

 private:
  using Gradients = std::vector<std::vector<float>>;
  /// One rank's part in a micro-batch: (parameters) (reduces) (elements).
  using Contributions = std::vector<std::vector<std::vector<float>>>;
  /// How far a parameter is within a micro-batch.
  struct Progress {
    int forwards = 0;
    int backwards_open = 0;
    int backwards_ended = 0;
    bool filling = false;  ///< contributed since its last reduce
  };

  float train_step(const StepProgram& program, int step) {
    Gradients total = zeros();
    std::vector<Gradients> of_replicas(static_cast<std::size_t>(order_.replicas), zeros());
    const std::size_t shard = static_cast<std::size_t>(ranks_ / order_.replicas);
    float loss = 0.0F;
    for (std::size_t batch = 0; batch < program.size(); ++batch) {
      std::vector<Contributions> of_ranks;
      float batch_loss = 0.0F;
      for (int rank = 0; rank < ranks_; ++rank) {
        of_ranks.emplace_back(weights_.size());
        const Data data{rank, step, static_cast<int>(batch)};
        batch_loss = batch_loss + run(program[batch], data, of_ranks.back());
      }
      loss = loss + batch_loss;
      for (std::size_t p = 0; p < total.size(); ++p) {
        for (std::size_t reduce = 0; reduce < of_ranks[0][p].size(); ++reduce) {
          std::vector<float> sum;
          for (std::size_t first = 0; first < of_ranks.size(); first += shard) {
            std::vector<float> part = of_ranks[first][p][reduce];
            for (std::size_t rank = first + 1; rank < first + shard; ++rank) {
              add(part, of_ranks[rank][p][reduce]);
            }
            if (order_.at_step_end) {
              add(of_replicas[first / shard][p], part);
            } else if (first == 0) {
              sum = part;
            } else {
              add(sum, part);
            }
          }
          if (!order_.at_step_end) {
            add(total[p], sum);
          }
        }
      }
    }
    if (order_.at_step_end) {
      total = of_replicas[0];
      for (std::size_t replica = 1; replica < of_replicas.size(); ++replica) {
        for (std::size_t p = 0; p < total.size(); ++p) {
          add(total[p], of_replicas[replica][p]);
        }
      }
    }
    for (auto& gradient : total) {
      for (float& g : gradient) {
        g = g / static_cast<float>(ranks_);
      }
    }
    gradients_ = std::move(total);
    return loss;
  }

  float run(const MicroBatchProgram& program, const Data& data, Contributions& own) {
    Activations activations;
    Activations eval;
    bool in_eval = false;
    bool in_backward = false;
    std::vector<Op> open;
    std::vector<Progress> progress(weights_.size());
    float loss = 0.0F;
    for (const Op& op : program) {
      switch (op.kind) {
        case Op::forward:
        case Op::begin_forward:
          if (!op.absent(data.rank)) {
            loss = (in_eval ? eval : activations).forward(data, op.unit, views(op.unit));
          }
          for (const UnitParameter& each : model_.units()[op.unit].parameters) {
            progress[each.parameter].forwards += in_eval || in_backward ? 0 : 1;
          }
          break;
        case Op::backward:
        case Op::begin_backward:
          in_backward = true;
          backward(data, op, activations, progress, own);
          break;
        case Op::end:
          if (open.back().kind == Op::begin_backward) {
            end_backward(open.back(), progress);
          }
          open.pop_back();
          break;
        case Op::begin_eval:
          in_eval = true;
          eval = {};
          break;
        case Op::end_eval:
          in_eval = false;
          break;
        case Op::outside:
          break;
      }
      if (op.kind == Op::begin_forward || op.kind == Op::begin_backward) {
        open.push_back(op);
      } else if (op.kind == Op::backward) {
        end_backward(op, progress);
      }
    }
    return loss;
  }

  std::vector<std::span<const float>> views(std::size_t unit) {
    std::vector<std::span<const float>> views;
    seen_.clear();
    for (const UnitParameter& each : model_.units()[unit].parameters) {
      const Parameter& parameter = model_.parameters()[each.parameter];
      std::vector<float> values = weights_[each.parameter];
      if (parameter.spec.dtype == DType::bf16) {
        for (float& value : values) {
          value = through_bf16(value);
        }
      }
      seen_.push_back(std::move(values));
    }
    for (const auto& values : seen_) {
      views.emplace_back(values);
    }
    return views;
  }

  void backward(const Data& data,
                const Op& op,
                Activations& activations,
                std::vector<Progress>& progress,
                Contributions& own) {
    const auto parameters = views(op.unit);
    const bool absent = op.absent(data.rank);
    std::size_t i = 0;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const ParameterId id = model_.units()[op.unit].parameters[p].parameter;
      const bool trainable = model_.parameters()[id].spec.trainable;
      ++progress[id].backwards_open;
      if (trainable && !progress[id].filling) {
        progress[id].filling = true;
        own[id].emplace_back(parameters[p].size(), 0.0F);
      }
      for (std::size_t j = 0; j < parameters[p].size(); ++j) {
        const float g = activations.gradient(data, op.unit, i++, parameters[p][j]);
        if (trainable && op.touches(p, data.rank) && !absent) {
          own[id].back()[j] = own[id].back()[j] + g;
        }
      }
    }
    if (!absent) {
      activations.backward_done(op.unit);
    }
  }

  void end_backward(const Op& op, std::vector<Progress>& progress) const {
    for (const UnitParameter& each : model_.units()[op.unit].parameters) {
      Progress& at = progress[each.parameter];
      --at.backwards_open;
      ++at.backwards_ended;
      if (!order_.once && at.backwards_open == 0 && at.backwards_ended >= at.forwards) {
        at.filling = false;
      }
    }
  }

  void update(const Gradients& gradients) {
    ++t_;
    const auto c1 = static_cast<float>(1.0 - std::pow(static_cast<double>(0.9F), t_));
    const auto c2 = static_cast<float>(1.0 - std::pow(static_cast<double>(0.999F), t_));
    for (const Parameter& parameter : model_.parameters()) {
      if (!parameter.spec.trainable) {
        continue;
      }
      std::vector<float>& w = weights_[parameter.id];
      for (std::size_t i = 0; i < w.size(); ++i) {
        const float g = gradients[parameter.id][i];
        if (optimizer_ == OptimizerKind::sgd) {
          w[i] = w[i] - 0.125F * g;
          continue;
        }
        float& m = m_[parameter.id][i];
        float& v = v_[parameter.id][i];
        m = 0.9F * m + (1.0F - 0.9F) * g;
        v = 0.999F * v + (1.0F - 0.999F) * (g * g);
        w[i] = w[i] - 0.01F * (m / c1 / (std::sqrt(v / c2) + 1e-8F) + 0.01F * w[i]);
      }
    }
  }

  Gradients zeros() const {
    Gradients gradients;
    for (const auto& values : weights_) {
      gradients.emplace_back(values.size(), 0.0F);
    }
    return gradients;
  }
  static void add(std::vector<float>& sum, const std::vector<float>& part) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = sum[i] + part[i];
    }
  }

  const Model& model_;
  int ranks_;
  OptimizerKind optimizer_;
  SumOrder order_;
  std::vector<std::vector<float>> weights_, m_, v_;
  Gradients gradients_;
  std::vector<std::vector<float>> seen_;  // what compute sees of the unit at hand
  int t_ = 0;
};

}  // namespace troupe::test
