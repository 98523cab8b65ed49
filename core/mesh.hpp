/// How the ranks of a world are divided among the axes of sharding. Pure.
///
/// Eight ranks, `replicate` 2, `shard` 4, `ep` 2. Ranks are numbered so that those that exchange
/// most are neighbours: experts, then one copy of the model, then the copies.
///
///                   copy 0                 copy 1
///     rank          0    1    2    3       4    5    6    7
///     shard         |------------------|   |------------------|
///     replicate     0 with 4, 1 with 5, 2 with 6, 3 with 7
///     experts       e0   e1   e0   e1      e0   e1   e0   e1
///     expert        0 with 2, 1 with 3;    4 with 6, 5 with 7
///     regather (2)  |-------| |--------|   |-------| |--------|
#pragma once

#include "troupe/core/error.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace troupe {

/// The `ParameterSpec::group` of a parameter that belongs to one expert: shared along the axis
/// `expert`, not by every rank of a copy.
inline constexpr std::string_view expert_group = "ep";

struct DeviceMesh {
  int replicate = 1;  ///< HSDP: copies of the sharded model; the ranks of one copy are neighbours
  int shard = 0;      ///< ranks over which one copy is sharded; 0: world size / `replicate`
  int ep = 1;         ///< expert parallelism: neighbours that hold different experts

  bool operator==(const DeviceMesh&) const = default;
};

enum class GroupAxis : std::uint8_t {
  world,      ///< all ranks
  shard,      ///< one copy of the model
  replicate,  ///< the ranks at the same place of every copy
  expert,     ///< the ranks of one copy that hold the same experts
  regather,   ///< a part of one copy, within which gathered parameters are kept
};

const char* to_string(GroupAxis axis);

/// The mesh with `shard` filled in. `world_size` ≥ 1. Errors: bad_configuration that names the
/// member and what would do: `replicate` times `shard` has to be the world size, `ep` to divide
/// `shard`.
Result<DeviceMesh> resolve(DeviceMesh mesh, int world_size);

/// The ranks of the group of `rank` along an axis, ascending. Every rank of the group gets the same
/// answer.
/// mesh                 resolved
/// regather_group_size  read for that axis only; divides `mesh.shard`
std::vector<int> group_ranks(const DeviceMesh& mesh,
                             GroupAxis axis,
                             int rank,
                             int regather_group_size = 0);

}  // namespace troupe
