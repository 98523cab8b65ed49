/// The process groups of one runtime on one rank, along the axes of its mesh.
#pragma once

#include "troupe/actors/runtime_setup.hpp"
#include "troupe/core/bucket_plan.hpp"
#include "troupe/core/mesh.hpp"

namespace troupe {

class RankContext;

/// A group and this rank's place in it.
struct Membership {
  Group group;
  int size = 1;
  int member = 0;  ///< this rank's place
};

struct ProcessGroups {
  Membership shard;      ///< one copy of the model
  Membership expert;     ///< those of a copy that hold the same experts
  Membership replicas;   ///< those at the same place of every copy
  Membership regathers;  ///< a part of a copy; only where parameters are gathered again

  /// That over which a bucket is sharded.
  const Membership& of(const Bucket& bucket) const {
    return bucket.group == expert_group ? expert : shard;
  }
};

/// Makes the communicators. `mesh` is resolved; `regather_group_size` 0: no such group. Collective
/// in effect: every rank makes its groups at the same place.
ProcessGroups make_process_groups(RankContext& context,
                                  const DeviceMesh& mesh,
                                  int regather_group_size);

}  // namespace troupe
