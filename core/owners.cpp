#include "troupe/core/owners.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace troupe {

namespace {

/// Gives `numel` elements to that run of `width` ranks, beginning at a multiple of it, whose
/// fullest rank has least; returns its number.
int place(std::vector<std::int64_t>& loads, int width, std::int64_t numel) {
  const auto run_of = [&](int owner) { return loads.begin() + std::ptrdiff_t{owner} * width; };
  const auto fullest = [&](int owner) {
    return *std::max_element(run_of(owner), run_of(owner) + width);
  };
  int best = 0;
  for (int owner = 1; owner < static_cast<int>(loads.size()) / width; ++owner) {
    if (fullest(owner) < fullest(best)) {
      best = owner;
    }
  }
  std::for_each(run_of(best), run_of(best) + width, [&](std::int64_t& load) { load += numel; });
  return best;
}

}  // namespace

void deal_owners(BucketPlan& plan, const DeviceMesh& mesh) {
  assert(mesh.shard >= 1 && mesh.shard % mesh.ep == 0);
  std::vector<Bucket*> order;
  order.reserve(plan.buckets.size());
  for (Bucket& bucket : plan.buckets) {
    order.push_back(&bucket);
  }
  std::ranges::sort(order, {},
                    [](const Bucket* bucket) { return std::pair(-bucket->numel, bucket->id); });
  std::vector<std::int64_t> loads(static_cast<std::size_t>(mesh.shard));  // per rank of a copy
  for (Bucket* bucket : order) {
    assert(bucket->group.empty() || bucket->group == expert_group);
    bucket->owner = place(loads, bucket->group.empty() ? 1 : mesh.ep, bucket->numel);
  }
}

}  // namespace troupe
