/// The fixture D4 of the scenarios: four ranks, four layers of 1024 fp32 elements, gradients that
/// are small integers, so that every sum is exact.
///
///     start     p_i[j] = i + j/1024
///     gradient  on rank r every element of layer i is (r+1)(i+1), times a factor
///     update    SGD, learning rate 0.1, mean gradient
///     limits    2 slots, 2 gradient slots, prefetch depth 1
#pragma once

#include "ranks.hpp"
#include "troupe/runtime/optimizer.hpp"
#include "troupe/runtime/runtime.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace troupe::test {

constexpr float d4_learning_rate = 0.1F;

inline Model d4_model(std::size_t layers = 4, std::int64_t numel = 1024) {
  Model model;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const UnitId unit = model.add_unit("L" + std::to_string(layer));
    model.add_parameter(unit, {.name = "w", .shape = {numel}});
  }
  return model;
}

inline Options d4_options(int slots = 2, int gradient_slots = 2, int depth = 1) {
  return {.slots = slots, .gradient_slots = gradient_slots, .prefetch_depth = depth};
}

inline float d4_gradient(int rank, UnitId layer) {
  return static_cast<float>(rank + 1) * static_cast<float>(layer + 1);
}
/// Over all ranks.
inline float d4_gradient_sum(int ranks, UnitId layer) {
  return static_cast<float>(ranks * (ranks + 1) / 2) * static_cast<float>(layer + 1);
}

/// Ends a use that was ended already: what a framework's hooks do when one fires too often.
class EndAgain : public Scope {
 public:
  EndAgain(LayerEvents& events, std::uint32_t use) : Scope(events, {ScopeKind::use, use}) {}
};

/// The same training in one process: full parameters, sums over ranks, no runtime.
class Oracle {
 public:
  explicit Oracle(const Model& model) : model_(model), sums_(model.parameters().size(), 0.0F) {
    std::vector<std::size_t> used(model.units().size());
    for (const Parameter& parameter : model.parameters()) {
      std::vector<float>& weights = weights_.emplace_back();
      for (std::int64_t i = 0; i < parameter.numel; ++i) {
        weights.push_back(static_cast<float>(parameter.unit) +
                          static_cast<float>(used[parameter.unit]++) / 1024.0F);
      }
    }
  }
  /// `sum`: every element's gradient, summed over ranks.
  void contribute(ParameterId parameter, float sum) { sums_[parameter] += sum; }
  void step(float divisor, float learning_rate = d4_learning_rate) {
    for (const Parameter& parameter : model_.parameters()) {
      const float gradient = sums_[parameter.id] / divisor;
      for (float& weight : weights_[parameter.id]) {
        weight = parameter.spec.trainable ? weight - learning_rate * gradient : weight;
      }
      sums_[parameter.id] = 0.0F;
    }
  }
  /// A step given up: what was contributed to it.
  void drop() { std::ranges::fill(sums_, 0.0F); }
  void set(ParameterId parameter, std::vector<float> weights) {
    weights_[parameter] = std::move(weights);
  }
  const std::vector<float>& weights(ParameterId parameter) const { return weights_[parameter]; }

 private:
  const Model model_;  // the runtime's is gone when it plans anew
  std::vector<std::vector<float>> weights_;
  std::vector<float> sums_;
};

/// A trainer of one rank with an oracle of its own, which it compares at every use.
class D4Trainer {
 public:
  D4Trainer(World& of_world, Findings& found, const Model& model, Options options)
      : world(of_world), findings(found), runtime(world, model, options), oracle(runtime.model()) {
    runtime.initialize([&](ParameterView view) {
      const ParameterId id = runtime.model().parameter(view.name);
      std::ranges::copy(oracle.weights(id), view.data.begin());
    });
  }

  /// What is on the stream uses this object.
  ~D4Trainer() { wait_for_stream(); }
  D4Trainer(const D4Trainer&) = delete;
  D4Trainer& operator=(const D4Trainer&) = delete;

  World& world;
  Findings& findings;
  Runtime runtime;
  Oracle oracle;
  HostStream* stream = nullptr;  ///< null: computes on the calling thread
  std::atomic<std::int64_t> uses_computed{0};

  void forward(UnitId unit) {
    const Use use = runtime.forward(unit, stream);
    read(use, unit);
  }
  void backward(UnitId unit, float factor = 1.0F, std::uint32_t untouched = 0) {
    const Use use = runtime.backward(unit, stream);
    read(use, unit);
    contribute(use, unit, factor, untouched);
  }
  /// The parameters that a use sees are the oracle's.
  void read(const Use& use, UnitId unit) {
    for (const UnitParameter& each : runtime.model().units()[unit].parameters) {
      const TensorView view = use[each.name];
      compute([this, view, unit, right = oracle.weights(each.parameter)] {
        findings.expect(std::ranges::equal(view.as<float>(), right),
                        "rank " + std::to_string(world.rank()) +
                            " reads other parameters in unit " + std::to_string(unit));
      });
    }
    compute([this] { ++uses_computed; });
  }
  /// `untouched`: bits of parameters that get no gradient.
  void contribute(const Use& use, UnitId unit, float factor, std::uint32_t untouched = 0) {
    std::uint32_t bit = 1;
    for (const UnitParameter& each : runtime.model().units()[unit].parameters) {
      if (runtime.model().parameters()[each.parameter].spec.trainable && (untouched & bit) == 0) {
        const GradientView view = use.gradient(each.name);
        const float gradient = d4_gradient(world.rank(), unit) * factor;
        compute([view, gradient] {
          for (float& value : view.as<float>()) {
            value = view.accumulate ? value + gradient : gradient;
          }
        });
        oracle.contribute(each.parameter, d4_gradient_sum(world.size(), unit) * factor);
      }
      bit <<= 1;
    }
  }
  void micro_batch(float factor = 1.0F, bool reduce = true) {
    const auto scope = runtime.micro_batch({.reduce = reduce});
    const auto units = static_cast<UnitId>(runtime.model().units().size());
    for (UnitId unit = 0; unit < units; ++unit) {
      forward(unit);
    }
    for (UnitId unit = units; unit-- > 0;) {
      backward(unit, factor);
    }
  }
  void optimize() {
    Sgd({.learning_rate = d4_learning_rate}).step(runtime);
    oracle.step(runtime.options().gradient_divisor.value_or(static_cast<float>(world.size())));
  }
  void step() {
    micro_batch();
    runtime.finish_gradients();
    optimize();
  }
  /// Every element of this rank's gradient shards, by bucket, is what `right` says.
  void expect_gradients(const std::function<float(BucketId)>& right) {
    Update update = runtime.update();
    for (std::size_t index = 0; index < update.shard_count(); ++index) {
      const ShardView shard = update.shard(index);
      for (const ShardPiece& piece : shard.pieces) {
        const auto part = shard.gradients.subspan(static_cast<std::size_t>(piece.shard_offset),
                                                  static_cast<std::size_t>(piece.numel));
        findings.expect(
            std::ranges::all_of(part, [&](float g) { return g == right(shard.bucket); }),
            "rank " + std::to_string(world.rank()) + ": gradient of bucket " +
                std::to_string(shard.bucket) + " holds " + std::to_string(part.front()) + ", not " +
                std::to_string(right(shard.bucket)));
      }
      update.put_back(index);
    }
  }
  /// The whole of every parameter is the oracle's, and nothing is under way.
  void expect_oracle() {
    for (const Parameter& parameter : runtime.model().parameters()) {
      findings.expect(runtime.full_parameter(parameter.full_name) == oracle.weights(parameter.id),
                      "rank " + std::to_string(world.rank()) + ": " + parameter.full_name +
                          " is not the oracle's");
    }
    RankActors& actors = world.context().actors();
    findings.expect(actors.quiesce(std::chrono::seconds{20}), "collectives are still under way");
    findings.equal(actors.state().completed.load(), actors.next_ticket() - 1, "tickets completed");
    findings.equal(world.device().counters().gradient_bytes.load(), 0, "gradient bytes at the end");
  }
  ScheduleCounters counters() const { return runtime.report().schedule; }

  template <class Work>
  void compute(Work work) {
    if (stream == nullptr) {
      work();
    } else {
      stream->run(std::move(work));
    }
  }

  /// Until what was issued on the trainer's stream is done (or dropped, after a failure).
  void wait_for_stream() {
    if (stream != nullptr) {
      const auto reached = std::make_shared<std::promise<void>>();
      std::future<void> end = reached->get_future();
      stream->notify([reached](const StreamReport&) { reached->set_value(); });
      findings.expect(end.wait_for(std::chrono::seconds{20}) == std::future_status::ready,
                      "the compute stream did not get to its end");
    }
  }
};

}  // namespace troupe::test
