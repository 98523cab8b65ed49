#include "troupe/core/mesh.hpp"

#include "troupe/core/text.hpp"

#include <cassert>
#include <string>
#include <utility>

namespace troupe {

namespace {

using detail::concat;

Failure refusal(std::string text) {
  return detail::failure(ErrorCode::bad_configuration, std::move(text));
}

Failure does_not_divide(std::string_view member, int value, std::string_view whole, int total) {
  std::vector<std::string> divisors;
  for (int divisor = 1; divisor <= total; ++divisor) {
    if (total % divisor == 0) {
      divisors.push_back(std::to_string(divisor));
    }
  }
  return refusal(concat(member, " is ", value, ", which does not divide ", whole, ", ", total,
                        "; what would do: ", detail::listed(divisors, divisors.size())));
}

/// `count` ranks from `first`, each `stride` behind the one before.
std::vector<int> every(int first, int stride, int count) {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    ranks.push_back(first + i * stride);
  }
  return ranks;
}

}  // namespace

const char* to_string(GroupAxis axis) {
  switch (axis) {
    case GroupAxis::world:
      return "world";
    case GroupAxis::shard:
      return "shard";
    case GroupAxis::replicate:
      return "replicate";
    case GroupAxis::expert:
      return "expert";
    case GroupAxis::regather:
      return "regather";
  }
  return "?";
}

Result<DeviceMesh> resolve(DeviceMesh mesh, int world_size) {
  assert(world_size >= 1);
  if (mesh.replicate < 1) {
    return refusal(concat("mesh.replicate is ", mesh.replicate, ", expected at least 1"));
  }
  if (mesh.shard < 0) {
    return refusal(concat("mesh.shard is ", mesh.shard,
                          ", expected at least 1, or 0 for all ranks of a copy"));
  }
  if (mesh.ep < 1) {
    return refusal(concat("mesh.ep is ", mesh.ep, ", expected at least 1"));
  }
  if (world_size % mesh.replicate != 0) {
    return does_not_divide("mesh.replicate", mesh.replicate, "the world size", world_size);
  }
  const int shard = world_size / mesh.replicate;
  if (mesh.shard != 0 && mesh.shard != shard) {
    return refusal(concat("mesh.shard is ", mesh.shard, ", but a world of ", world_size,
                          " ranks with mesh.replicate = ", mesh.replicate, " has copies of ",
                          detail::count_of(static_cast<std::size_t>(shard), "rank"), "; ", shard,
                          " would do, or 0"));
  }
  mesh.shard = shard;
  if (shard % mesh.ep != 0) {
    return does_not_divide("mesh.ep", mesh.ep, "the ranks of a copy", shard);
  }
  return mesh;
}

std::vector<int> group_ranks(const DeviceMesh& mesh,
                             GroupAxis axis,
                             int rank,
                             int regather_group_size) {
  const int world_size = mesh.replicate * mesh.shard;
  assert(mesh.shard >= 1 && rank >= 0 && rank < world_size);
  const int place = rank % mesh.shard;
  const int first = rank - place;  // of its copy
  switch (axis) {
    case GroupAxis::world:
      return every(0, 1, world_size);
    case GroupAxis::shard:
      return every(first, 1, mesh.shard);
    case GroupAxis::replicate:
      return every(place, mesh.shard, mesh.replicate);
    case GroupAxis::expert:
      return every(first + place % mesh.ep, mesh.ep, mesh.shard / mesh.ep);
    case GroupAxis::regather:
      assert(regather_group_size >= 1 && mesh.shard % regather_group_size == 0);
      return every(rank - place % regather_group_size, 1, regather_group_size);
  }
  return {};
}

}  // namespace troupe
