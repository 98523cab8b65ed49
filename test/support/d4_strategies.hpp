/// D4 under every strategy and each variant of it, four ranks.
#pragma once

#include "d4.hpp"

#include <vector>

namespace troupe::test {

struct D4Variant {
  const char* name;
  Options options;
};

/// Every bucket keeps its full buffer, and launches follow the agreed order.
inline bool is_agreed(const Options& options) {
  return row_of(options.strategy).full_buffer == FullBuffer::stays;
}
inline Collective unshards_by(const Options& options) {
  return row_of(options.strategy).unshard_by;
}
inline Collective reduces_by(const Options& options) {
  return row_of(options.strategy).reduce_by;
}

/// The gathers (or broadcasts) of a strategy in launch order, without exports.
inline std::vector<BucketId> unshards(const LaunchLog& launches, const Options& options) {
  std::vector<BucketId> buckets;
  for (const LaunchRecord& launch : launches.of_rank[0]) {
    if (launch.op == unshards_by(options) && launch.bucket != no_bucket &&
        launch.label != "for an export") {
      buckets.push_back(launch.bucket);
    }
  }
  return buckets;
}

/// The synchronous path of the same strategy.
inline Options without_overlap(Options options) {
  options.overlap = false;
  options.prefetch_depth.reset();
  return options;
}

/// Strategies whose launches follow the agreed order; each layer of D4 is one bucket.
inline std::vector<D4Variant> d4_agreed_variants() {
  constexpr Strategy owner = Strategy::owner_broadcast;
  constexpr Strategy sliced = Strategy::sharded_optimizer;
  return {
      {"owner_broadcast", {.strategy = owner, .gradient_slots = 2, .prefetch_depth = 1}},
      {"owner_broadcast, gradients kept",
       {.strategy = owner, .free_full_gradients = false, .prefetch_depth = 1}},
      {"sharded_optimizer", {.strategy = sliced, .gradient_slots = 2, .prefetch_depth = 1}},
      {"sharded_optimizer, gradients kept",
       {.strategy = sliced, .free_full_gradients = false, .prefetch_depth = 1}},
      {"sharded_optimizer, two replicas",
       {.strategy = sliced, .mesh = {.replicate = 2}, .gradient_slots = 2, .prefetch_depth = 1}},
  };
}

inline std::vector<D4Variant> d4_full_shard_variants() {
  Options regather = d4_options();
  regather.regather_group_size = 2;
  Options kept = d4_options();
  kept.keep_gathered = {"L0"};
  Options replicas = d4_options();
  replicas.mesh.replicate = 2;
  Options summed_once = replicas;
  summed_once.sum_replicas_at_step_end = true;
  return {
      {"full_shard", d4_options()},
      {"full_shard, not resharded",
       {.reshard_after_forward = false, .gradient_slots = 2, .prefetch_depth = 1}},
      {"full_shard, L0 kept", kept},
      {"full_shard, gathered again among 2", regather},
      {"full_shard, two replicas", replicas},
      {"full_shard, two replicas summed at step end", summed_once},
  };
}

/// All of them, each with overlap and without.
inline std::vector<D4Variant> d4_variants() {
  std::vector<D4Variant> variants;
  for (const auto& some : {d4_agreed_variants(), d4_full_shard_variants()}) {
    for (const D4Variant& variant : some) {
      variants.push_back(variant);
      variants.push_back({variant.name, without_overlap(variant.options)});
    }
  }
  return variants;
}

}  // namespace troupe::test
