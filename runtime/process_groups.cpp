#include "troupe/runtime/process_groups.hpp"

#include "troupe/runtime/rank_context.hpp"

#include <algorithm>
#include <vector>

namespace troupe {

ProcessGroups make_process_groups(RankContext& context,
                                  const DeviceMesh& mesh,
                                  int regather_group_size) {
  const auto along = [&](GroupAxis axis) {
    const std::vector<int> ranks = group_ranks(mesh, axis, context.rank(), regather_group_size);
    const auto place = std::ranges::find(ranks, context.rank()) - ranks.begin();
    return Membership{context.group(axis, ranks), static_cast<int>(ranks.size()),
                      static_cast<int>(place)};
  };
  ProcessGroups groups;
  groups.shard = along(GroupAxis::shard);
  groups.expert = mesh.ep > 1 ? along(GroupAxis::expert) : groups.shard;
  if (mesh.replicate > 1) {
    groups.replicas = along(GroupAxis::replicate);
  }
  if (regather_group_size > 0) {
    groups.regathers = along(GroupAxis::regather);
  }
  return groups;
}

}  // namespace troupe
