/// Dense and expert layers in turns, whose gradients are small integers: (r+1)(unit+1) on rank r.
/// Weights start at 0 and move by the sum over the ranks that share them.
#pragma once

#include "d4.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace troupe::test {

/// dense.0, expert.0, dense.1, …
inline Model dense_and_experts(UnitId each, std::int64_t numel = 256) {
  Model model;
  for (UnitId i = 0; i < each; ++i) {
    model.add_parameter(model.add_unit("dense." + std::to_string(i)),
                        {.name = "w", .shape = {numel}});
    model.add_parameter(model.add_unit("expert." + std::to_string(i)),
                        {.name = "w", .shape = {numel}, .group = std::string(expert_group)});
  }
  return model;
}

inline bool is_expert(UnitId unit) {
  return unit % 2 == 1;
}

struct ExpertTrainer {
  Findings& findings;
  Runtime runtime;
  int rank;
  int ranks;
  int ep;
  /// Per unit, what its weights are on this rank.
  std::vector<float> right;
  std::vector<float> sums;  ///< per unit, of the step

  ExpertTrainer(World& world, Findings& found, const Model& model, const Options& options)
      : findings(found),
        runtime(world, model, options),
        rank(world.rank()),
        ranks(world.size()),
        ep(runtime.options().mesh.ep),
        right(model.units().size()),
        sums(model.units().size()) {
    runtime.initialize([](ParameterView) {});
  }

  void use(UnitId unit, bool backward, bool tokens) {
    const Use use = backward ? runtime.backward(unit) : runtime.forward(unit);
    findings.expect(
        std::ranges::all_of(use["w"].as<float>(), [&](float p) { return p == right[unit]; }),
        "rank " + std::to_string(rank) + " reads other weights in unit " + std::to_string(unit));
    if (backward && tokens) {
      const GradientView view = use.gradient("w");
      for (float& value : view.as<float>()) {
        value = (view.accumulate ? value : 0.0F) + d4_gradient(rank, unit);
      }
    }
  }
  /// `routed(peer, unit)`: whether that rank has something to compute there. Without, it has no
  /// gradient; the unit is used all the same.
  template <class Routed>
  void micro_batch(Routed routed) {
    const auto scope = runtime.micro_batch();
    const auto units = static_cast<UnitId>(runtime.model().units().size());
    for (UnitId unit = 0; unit < units; ++unit) {
      use(unit, false, routed(rank, unit));
    }
    for (UnitId unit = units; unit-- > 0;) {
      use(unit, true, routed(rank, unit));
      for (int peer = 0; peer < ranks; ++peer) {
        const bool shares = !is_expert(unit) || peer % ep == rank % ep;
        sums[unit] += shares && routed(peer, unit) ? d4_gradient(peer, unit) : 0.0F;
      }
    }
  }
  void micro_batch() {
    micro_batch([](int, UnitId) { return true; });
  }
  /// An optimizer that knows of some buckets only: p -= gradient.
  void optimize(Update& update, bool experts) const {
    for (const Bucket& bucket : runtime.bucket_plan().buckets) {
      if ((bucket.group == expert_group) == experts) {
        const ShardView shard = update.shard(bucket.id);
        for (std::size_t i = 0; i < shard.weights.size(); ++i) {
          shard.weights[i] -= shard.gradients[i];
        }
        update.finish(bucket.id);
      }
    }
  }
  /// What the updates of a step amount to.
  void note_updated(float divisor, float expert_divisor) {
    for (UnitId unit = 0; unit < right.size(); ++unit) {
      right[unit] -= sums[unit] / (is_expert(unit) ? expert_divisor : divisor);
      sums[unit] = 0.0F;
    }
  }
};

}  // namespace troupe::test
