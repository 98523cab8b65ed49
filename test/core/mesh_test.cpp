#include "troupe/core/mesh.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace troupe {
namespace {

using Ranks = std::vector<int>;

constexpr GroupAxis axes[] = {GroupAxis::world, GroupAxis::shard, GroupAxis::replicate,
                              GroupAxis::expert, GroupAxis::regather};

DeviceMesh resolved(DeviceMesh mesh, int world_size) {
  const auto result = resolve(mesh, world_size);
  REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.failure().text));
  return result.value();
}

std::string refusal(DeviceMesh mesh, int world_size) {
  const auto result = resolve(mesh, world_size);
  REQUIRE_FALSE(result.ok());
  CHECK(result.failure().code == ErrorCode::bad_configuration);
  return result.failure().text;
}

std::vector<int> divisors_of(int number) {
  std::vector<int> divisors;
  for (int divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) {
      divisors.push_back(divisor);
    }
  }
  return divisors;
}

TEST_CASE("the mesh drawn in mesh.hpp") {
  const DeviceMesh mesh = resolved({.replicate = 2, .shard = 4, .ep = 2}, 8);
  CHECK(group_ranks(mesh, GroupAxis::world, 5) == Ranks{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(group_ranks(mesh, GroupAxis::shard, 2) == Ranks{0, 1, 2, 3});
  CHECK(group_ranks(mesh, GroupAxis::shard, 5) == Ranks{4, 5, 6, 7});
  CHECK(group_ranks(mesh, GroupAxis::replicate, 0) == Ranks{0, 4});
  CHECK(group_ranks(mesh, GroupAxis::replicate, 7) == Ranks{3, 7});
  CHECK(group_ranks(mesh, GroupAxis::expert, 0) == Ranks{0, 2});
  CHECK(group_ranks(mesh, GroupAxis::expert, 3) == Ranks{1, 3});
  CHECK(group_ranks(mesh, GroupAxis::expert, 6) == Ranks{4, 6});
  CHECK(group_ranks(mesh, GroupAxis::expert, 7) == Ranks{5, 7});
  CHECK(group_ranks(mesh, GroupAxis::regather, 1, 2) == Ranks{0, 1});
  CHECK(group_ranks(mesh, GroupAxis::regather, 2, 2) == Ranks{2, 3});
  CHECK(group_ranks(mesh, GroupAxis::regather, 7, 2) == Ranks{6, 7});
}

TEST_CASE("a shard that is not given takes all ranks of a copy") {
  struct Row {
    int world_size;
    int replicate;
    int shard;
  };
  constexpr Row rows[] = {{1, 1, 1}, {2, 1, 2}, {3, 1, 3}, {4, 2, 2}, {7, 7, 1}, {8, 2, 4}};
  for (const Row& row : rows) {
    CAPTURE(row.world_size);
    const DeviceMesh expected{.replicate = row.replicate, .shard = row.shard, .ep = 1};
    CHECK(resolved({.replicate = row.replicate}, row.world_size) == expected);
    CHECK(resolved(expected, row.world_size) == expected);
  }
}

TEST_CASE("by default one copy is sharded over the world, and no rank has a twin") {
  for (const int world_size : {1, 2, 3, 4, 7, 8}) {
    CAPTURE(world_size);
    const DeviceMesh mesh = resolved({}, world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      const Ranks world = group_ranks(mesh, GroupAxis::world, rank);
      CHECK(world.size() == static_cast<std::size_t>(world_size));
      CHECK(group_ranks(mesh, GroupAxis::shard, rank) == world);
      CHECK(group_ranks(mesh, GroupAxis::expert, rank) == world);
      CHECK(group_ranks(mesh, GroupAxis::replicate, rank) == Ranks{rank});
      CHECK(group_ranks(mesh, GroupAxis::regather, rank, 1) == Ranks{rank});
      CHECK(group_ranks(mesh, GroupAxis::regather, rank, world_size) == world);
    }
  }
}

TEST_CASE("along every axis the ranks fall into groups of one size, in which all agree") {
  for (const int world_size : {1, 2, 3, 4, 7, 8}) {
    for (const int replicate : divisors_of(world_size)) {
      for (const int ep : divisors_of(world_size / replicate)) {
        const DeviceMesh mesh = resolved({.replicate = replicate, .ep = ep}, world_size);
        CAPTURE(world_size);
        CAPTURE(replicate);
        CAPTURE(ep);
        for (const GroupAxis axis : axes) {
          CAPTURE(to_string(axis));
          // The smaller groups are as large as those of experts, for want of another divisor.
          const int sizes[] = {world_size, mesh.shard, replicate, mesh.shard / ep, ep};
          const int size = sizes[static_cast<std::size_t>(axis)];
          for (int rank = 0; rank < world_size; ++rank) {
            const Ranks group = group_ranks(mesh, axis, rank, ep);
            CHECK(group.size() == static_cast<std::size_t>(size));
            CHECK(std::ranges::is_sorted(group));
            CHECK(std::ranges::count(group, rank) == 1);
            for (const int member : group) {
              CHECK(group_ranks(mesh, axis, member, ep) == group);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a rank shares its group of experts with one copy, and its place with the other copies") {
  const DeviceMesh mesh = resolved({.replicate = 2, .shard = 6, .ep = 3}, 12);
  CHECK(group_ranks(mesh, GroupAxis::expert, 10) == Ranks{7, 10});
  CHECK(group_ranks(mesh, GroupAxis::replicate, 10) == Ranks{4, 10});
  CHECK(group_ranks(mesh, GroupAxis::expert, 4) == Ranks{1, 4});
}

TEST_CASE("what is wrong with a mesh is named, with what would do") {
  CHECK(refusal({.replicate = 0}, 4) == "mesh.replicate is 0, expected at least 1");
  CHECK(refusal({.shard = -1}, 4) ==
        "mesh.shard is -1, expected at least 1, or 0 for all ranks of a copy");
  CHECK(refusal({.ep = 0}, 4) == "mesh.ep is 0, expected at least 1");
  CHECK(refusal({.replicate = 3}, 8) ==
        "mesh.replicate is 3, which does not divide the world size, 8; what would do: 1, 2, 4, 8");
  CHECK(refusal({.replicate = 16, .shard = 1}, 8).starts_with("mesh.replicate is 16, which does"));
  CHECK(refusal({.replicate = 2, .shard = 3}, 8) ==
        "mesh.shard is 3, but a world of 8 ranks with mesh.replicate = 2 has copies of 4 ranks; "
        "4 would do, or 0");
  CHECK(refusal({.shard = 1}, 7) ==
        "mesh.shard is 1, but a world of 7 ranks with mesh.replicate = 1 has copies of 7 ranks; "
        "7 would do, or 0");
  CHECK(refusal({.replicate = 2, .ep = 3}, 8) ==
        "mesh.ep is 3, which does not divide the ranks of a copy, 4; what would do: 1, 2, 4");
  CHECK(refusal({.replicate = 2, .ep = 8}, 8).starts_with("mesh.ep is 8, which does not divide"));
  CHECK(refusal({.ep = 2}, 1).starts_with("mesh.ep is 2, which does not divide"));
}

TEST_CASE("axes have names") {
  std::vector<std::string> names;
  for (const GroupAxis axis : axes) {
    names.emplace_back(to_string(axis));
  }
  CHECK(names == std::vector<std::string>{"world", "shard", "replicate", "expert", "regather"});
}

}  // namespace
}  // namespace troupe
