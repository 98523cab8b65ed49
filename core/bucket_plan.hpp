/// Which parameters travel together. Pure: the same model gives the same plan on every rank.
///
/// A bucket holds parameters that share dtype, trainability and process group; a parameter is never
/// split. Tied parameters share a bucket only with parameters of their unit that are tied to the
/// same units. Which of the others come together depends on the strategy, here for two units of
/// three parameters each:
///
///     unit                 block.0           block.1
///     parameters           wq    wk    w1    wq    wk    w1
///     full_shard          |------ 0 -------||------ 1 -------|    those of one unit
///     sharded_optimizer   |--- 0 ----||--- 1 ----||--- 2 ----|    neighbours, across units
///     owner_broadcast     | 0  || 1  || 2  || 3  || 4  || 5  |    each by itself
///
/// Buckets are numbered by the first unit that uses them, then by their first parameter: that order
/// is the order of launches.
#pragma once

#include "troupe/core/model.hpp"
#include "troupe/core/strategy.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct Bucket {
  BucketId id = 0;
  DType dtype = DType::f32;
  bool trainable = true;
  std::string group;
  std::vector<UnitId> units;            ///< that use some of its parameters, ascending
  bool tied = false;                    ///< each of its parameters is used by all of `units`, ≥ 2
  std::vector<ParameterId> parameters;  ///< by unit, then in registration order; never empty
  std::int64_t numel = 0;               ///< of its parameters, without any padding
  int owner = -1;                       ///< owner_broadcast: index in its process group, by
                                        ///< `deal_owners`; -1: none
};

struct BucketPlan {
  std::vector<Bucket> buckets;
  std::vector<std::vector<BucketId>> unit_buckets;  ///< per unit, ascending
  std::vector<BucketId> bucket_of;                  ///< per parameter

  /// "3 'block.1' (wq, wk, ...)", or "3 'block.1'..'block.3' (wq, wk, ...)" if it is fused: for
  /// messages. At most three parameters are listed.
  std::string describe(BucketId bucket, const Model& model) const;
};

/// `bytes_max` limits the unsharded bytes of a bucket; a parameter that exceeds it alone has a
/// bucket of its own. 0:
///   full_shard         no limit
///   sharded_optimizer  `fused_bytes_default`
///   owner_broadcast    each parameter has a bucket of its own. With a limit, those of a unit are
///                      fused up to it.
BucketPlan plan_buckets(const Model& model,
                        Strategy strategy = Strategy::full_shard,
                        std::int64_t bytes_max = 0);

/// A sixteenth of the unsharded bytes of the trainable parameters, rounded up; at least 1 byte, at
/// most 25 MiB. A sixteenth leaves enough buckets for the transfer of each but the first to
/// run beside the work on others; about 25 MiB is what PyTorch's DistributedDataParallel fuses
/// (bucket_cap_mb).
std::int64_t fused_bytes_default(const Model& model);

}  // namespace troupe
