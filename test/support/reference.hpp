/// Unsharded training of the toy, written without anything of the runtime: full parameters, plain
/// loops. A parameter is reduced when its backwards have caught up with its forwards
/// (recomputations and eval not counted), else at the end of the micro-batch. Each reduce adds what
/// the ranks have contributed since the last one, in rank order; the total adds the reduces in
/// order. A micro-batch that does not reduce leaves each rank's contributions for the next one to
/// add to, or for the end of the step. Divides once, updates. With several replicas (HSDP) each
/// replica's ranks are added first, then the replicas, in order: of every reduce, or of the step's
/// totals. Parameters of experts have a value for each expert and are added over the ranks that
/// hold it. A rank that leaves a use out contributes zeros.
#pragma once

#include "toy_model.hpp"
#include "troupe/core/mesh.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace troupe::test {

enum class OptimizerKind { sgd, adamw };

struct ReferenceResult {
  std::map<std::string, std::vector<float>> parameters;  ///< by `name_of_copy`
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
  int experts = 1;             ///< neighbours that hold different ones
  bool once = false;           ///< a parameter is reduced once in each micro-batch, at its end
  DType buffers = DType::f32;  ///< in which gradients are contributed
  DType wire = DType::f32;     ///< in which they are sent, and sums over ranks rounded
  DType main_gradients = DType::f32;
  DType main_weights = DType::f32;  ///< of bf16 parameters
  float divisor = 0;                ///< 0: the number of ranks
  float expert_divisor = 0;         ///< 0: as the others
};

class Reference {
 public:
  Reference(const Model& model, int ranks, OptimizerKind optimizer, SumOrder order = {})
      : model_(model), ranks_(ranks), optimizer_(optimizer), order_(order) {
    for (const Parameter& parameter : model.parameters()) {
      copies_.push_back({parameter.id, 0});
    }
    for (const Parameter& parameter : model.parameters()) {
      for (int expert = 1; of_expert(parameter) && expert < order.experts; ++expert) {
        copies_.push_back({parameter.id, expert});
      }
    }
    for (const Copy& copy : copies_) {
      const Parameter& parameter = model.parameters()[copy.parameter];
      const std::string name = name_of_copy(parameter.full_name, copy.expert);
      std::vector<float> values(static_cast<std::size_t>(parameter.numel));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = initial_value(name, i);
      }
      round(weight_dtype(parameter), values);
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
    for (std::size_t c = 0; c < copies_.size(); ++c) {
      const std::string& name = model_.parameters()[copies_[c].parameter].full_name;
      result.parameters[name_of_copy(name, copies_[c].expert)] = weights_[c];
    }
    return result;
  }

  /// One step with its update; returns the loss.
  float step(const StepProgram& program, int index) {
    const float loss = train_step(program, index);
    update(gradients_);
    return loss;
  }
  /// Per parameter (of expert 0): the weights now.
  const std::vector<std::vector<float>>& weights() const { return weights_; }
  /// Per parameter (of expert 0): the averaged gradients of the last step.
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

  /// One value of a parameter: each expert has its own.
  struct Copy {
    ParameterId parameter = 0;
    int expert = 0;
  };

  static bool of_expert(const Parameter& parameter) { return parameter.spec.group == expert_group; }
  bool holds(int rank, const Copy& copy) const {
    return !of_expert(model_.parameters()[copy.parameter]) || rank % order_.experts == copy.expert;
  }
  std::size_t copy_at(ParameterId parameter, int rank) const {
    return static_cast<std::size_t>(std::ranges::find_if(copies_,
                                                         [&](const Copy& copy) {
                                                           return copy.parameter == parameter &&
                                                                  holds(rank, copy);
                                                         }) -
                                    copies_.begin());
  }
  static float in(DType dtype, float value) {
    return dtype == DType::bf16 ? through_bf16(value) : value;
  }
  DType weight_dtype(const Parameter& parameter) const {
    return parameter.spec.dtype == DType::bf16 ? order_.main_weights : DType::f32;
  }
  static void round(DType dtype, std::vector<float>& values) {
    std::ranges::transform(values, values.begin(), [&](float value) { return in(dtype, value); });
  }

  /// What the ranks [first, last) contribute to one reduce of a copy, added in order.
  std::vector<float> sum_of(const std::vector<Contributions>& of_ranks,
                            const Copy& copy,
                            std::size_t reduce,
                            std::size_t first,
                            std::size_t last) const {
    std::vector<float> sum;
    for (std::size_t rank = first; rank < last; ++rank) {
      if (!holds(static_cast<int>(rank), copy)) {
        continue;
      }
      const auto& reduces = of_ranks[rank][copy.parameter];
      std::vector<float> part = reduce < reduces.size()
                                    ? reduces[reduce]
                                    : std::vector<float>(weights_[copy.parameter].size());
      round(order_.wire, part);
      if (sum.empty()) {
        sum = part;
      } else {
        add(sum, part);
      }
    }
    round(order_.wire, sum);
    return sum;
  }

  float train_step(const StepProgram& program, int step) {
    Gradients total = zeros();
    std::vector<Gradients> of_replicas(static_cast<std::size_t>(order_.replicas), zeros());
    const std::size_t shard = static_cast<std::size_t>(ranks_ / order_.replicas);
    float loss = 0.0F;
    std::vector<Contributions> of_ranks;  // not reduced yet
    for (std::size_t batch = 0; batch <= program.size(); ++batch) {
      const bool ends = batch == program.size();  // reduces what is left
      float batch_loss = 0.0F;
      of_ranks.resize(static_cast<std::size_t>(ranks_), Contributions(model_.parameters().size()));
      for (int rank = 0; rank < ranks_ && !ends; ++rank) {
        const Data data{rank, step, static_cast<int>(batch)};
        batch_loss =
            batch_loss + run(program[batch], data, of_ranks[static_cast<std::size_t>(rank)]);
      }
      loss = loss + batch_loss;
      if (!ends && (!opens_micro_batch(program[batch]) || !reduces(program[batch]))) {
        continue;
      }
      for (std::size_t c = 0; c < copies_.size(); ++c) {
        std::size_t reduces = 0;
        for (const Contributions& each : of_ranks) {
          reduces = std::max(reduces, each[copies_[c].parameter].size());
        }
        for (std::size_t reduce = 0; reduce < reduces; ++reduce) {
          std::vector<float> sum;
          for (std::size_t first = 0; first < of_ranks.size(); first += shard) {
            const auto part = sum_of(of_ranks, copies_[c], reduce, first, first + shard);
            if (order_.at_step_end) {
              add(of_replicas[first / shard][c], part);
              round(order_.main_gradients, of_replicas[first / shard][c]);
            } else if (first == 0) {
              sum = part;
            } else {
              add(sum, part);
            }
          }
          if (!order_.at_step_end) {
            round(order_.wire, sum);
            add(total[c], sum);
            round(order_.main_gradients, total[c]);
          }
        }
      }
      of_ranks.clear();
    }
    if (order_.at_step_end) {
      total = of_replicas[0];
      for (std::size_t replica = 1; replica < of_replicas.size(); ++replica) {
        for (std::size_t c = 0; c < total.size(); ++c) {
          add(total[c], of_replicas[replica][c]);
        }
      }
      for (std::vector<float>& each : total) {
        round(order_.main_gradients, each);
      }
    }
    for (std::size_t c = 0; c < total.size(); ++c) {
      const bool expert = of_expert(model_.parameters()[copies_[c].parameter]);
      const bool own = expert && order_.expert_divisor > 0;
      const float given = own ? order_.expert_divisor : order_.divisor;
      for (float& g : total[c]) {
        g = in(order_.main_gradients, g / (given > 0 ? given : static_cast<float>(ranks_)));
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
    std::vector<Progress> progress(model_.parameters().size());
    for (ParameterId parameter = 0; parameter < progress.size(); ++parameter) {
      progress[parameter].filling = !own[parameter].empty();  // by the micro-batches before
    }
    float loss = 0.0F;
    for (const Op& op : program) {
      const bool absent = op.absent(data.rank);
      switch (op.kind) {
        case Op::forward:
        case Op::begin_forward:
          if (!absent) {
            loss = (in_eval ? eval : activations).forward(data, op.unit, views(op.unit, data.rank));
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
            end_backward(open.back(), progress, reduces(program));
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
        case Op::not_reduced:
          break;
      }
      if (op.kind == Op::begin_forward || op.kind == Op::begin_backward) {
        open.push_back(op);
      } else if (op.kind == Op::backward) {
        end_backward(op, progress, reduces(program));
      }
    }
    return loss;
  }

  std::vector<std::span<const float>> views(std::size_t unit, int rank) {
    std::vector<std::span<const float>> views;
    seen_.clear();
    for (const UnitParameter& each : model_.units()[unit].parameters) {
      const Parameter& parameter = model_.parameters()[each.parameter];
      std::vector<float> values = weights_[copy_at(each.parameter, rank)];
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
    const bool absent = op.absent(data.rank);
    const auto parameters = views(op.unit, data.rank);
    std::size_t i = 0;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const ParameterId id = model_.units()[op.unit].parameters[p].parameter;
      const bool trainable = model_.parameters()[id].spec.trainable;
      ++progress[id].backwards_open;
      if (trainable && !progress[id].filling) {
        progress[id].filling = true;
        own[id].emplace_back(parameters[p].size(), 0.0F);
      }
      for (std::size_t j = 0; j < parameters[p].size() && !absent; ++j) {
        const float g = activations.gradient(data, op.unit, i++, parameters[p][j]);
        if (trainable && op.touches(p, data.rank)) {
          own[id].back()[j] = in(order_.buffers, own[id].back()[j] + g);
        }
      }
    }
    if (!absent) {
      activations.backward_done(op.unit);
    }
  }

  void end_backward(const Op& op, std::vector<Progress>& progress, bool reduced) const {
    for (const UnitParameter& each : model_.units()[op.unit].parameters) {
      Progress& at = progress[each.parameter];
      --at.backwards_open;
      ++at.backwards_ended;
      if (at.backwards_open == 0 && at.backwards_ended >= at.forwards) {
        at.filling = (order_.once || !reduced) && at.filling;
      }
    }
  }

  void update(const Gradients& gradients) {
    ++t_;
    const auto c1 = static_cast<float>(1.0 - std::pow(static_cast<double>(0.9F), t_));
    const auto c2 = static_cast<float>(1.0 - std::pow(static_cast<double>(0.999F), t_));
    for (std::size_t c = 0; c < copies_.size(); ++c) {
      if (!model_.parameters()[copies_[c].parameter].spec.trainable) {
        continue;
      }
      std::vector<float>& w = weights_[c];
      for (std::size_t i = 0; i < w.size(); ++i) {
        const float g = gradients[c][i];
        if (optimizer_ == OptimizerKind::sgd) {
          w[i] = w[i] - 0.125F * g;
          continue;
        }
        float& m = m_[c][i];
        float& v = v_[c][i];
        m = 0.9F * m + (1.0F - 0.9F) * g;
        v = 0.999F * v + (1.0F - 0.999F) * (g * g);
        w[i] = w[i] - 0.01F * (m / c1 / (std::sqrt(v / c2) + 1e-8F) + 0.01F * w[i]);
      }
      round(weight_dtype(model_.parameters()[copies_[c].parameter]), w);
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
  std::vector<Copy> copies_;                         ///< those of expert 0 first, by parameter
  std::vector<std::vector<float>> weights_, m_, v_;  ///< per copy
  Gradients gradients_;
  std::vector<std::vector<float>> seen_;  // what compute sees of the unit at hand
  int t_ = 0;
};

}  // namespace troupe::test
