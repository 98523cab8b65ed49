/// Deals whole buckets to the ranks that own them: main weights, main gradient and optimizer state
/// of a bucket are on its owner alone. Pure, the same on every rank.
///
/// By size (elements, since what an owner keeps is fp32), largest first, each to the rank with the
/// least so far; of equals the lower bucket, the lower rank. Without expert groups the largest load
/// exceeds the smallest by no more than the largest bucket: when a rank got its last bucket it had
/// the least of all.
///
///     shard 3, buckets of 7, 5, 4, 4, 2       rank 0: 7       rank 1: 5 2     rank 2: 4 4
///
/// The owner of a bucket of an expert group is a place in that group: k stands for the ranks
/// k·ep … k·ep + ep - 1 of a copy, each with such a bucket of its own experts. They have as much as
/// the one of them that has most, and all get the bucket.
#pragma once

#include "troupe/core/bucket_plan.hpp"
#include "troupe/core/mesh.hpp"

namespace troupe {

/// Sets `owner` of every bucket, frozen ones too. The groups of the plan are "" and
/// `expert_group`; `mesh` is resolved.
void deal_owners(BucketPlan& plan, const DeviceMesh& mesh);

}  // namespace troupe
