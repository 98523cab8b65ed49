/// Which parameters travel together. Pure: the same model gives the same plan on every rank.
///
/// A bucket holds parameters of one unit that share dtype, trainability, process group and tying
/// (the set of units that use them). It never splits a parameter; with a limit on its size, one
/// that exceeds the limit alone has a bucket of its own. Buckets are numbered by the unit they were
/// first met in, then by their first parameter: that order is the order of launches.
#pragma once

#include "troupe/core/model.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct Bucket {
  BucketId id = 0;
  DType dtype = DType::f32;
  bool trainable = true;
  std::string group;
  std::vector<UnitId> units;            ///< that use it, ascending; more than one if tied
  std::vector<ParameterId> parameters;  ///< in registration order; never empty
  std::int64_t numel = 0;               ///< of its parameters, without any padding

  bool tied() const { return units.size() > 1; }
};

struct BucketPlan {
  std::vector<Bucket> buckets;
  std::vector<std::vector<BucketId>> unit_buckets;  ///< per unit, ascending
  std::vector<BucketId> bucket_of;                  ///< per parameter

  /// "3 'block.1' (wq, wk, ...)": for messages. At most three parameters are listed.
  std::string describe(BucketId bucket, const Model& model) const;
};

/// `bytes_max` limits the unsharded bytes of a bucket; 0: no limit.
BucketPlan plan_buckets(const Model& model, std::int64_t bytes_max = 0);

}  // namespace troupe
