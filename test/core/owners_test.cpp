#include "troupe/core/owners.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe {
namespace {

using Numels = std::vector<std::int64_t>;

struct Size {
  std::int64_t numel;
  std::string group = "";
};

/// A unit for each parameter, each its own bucket, in this order.
BucketPlan plan_of(const std::vector<Size>& sizes) {
  Model model;
  for (const Size& size : sizes) {
    const UnitId unit = model.add_unit("u" + std::to_string(model.units().size()));
    model.add_parameter(unit, {.name = "w", .shape = {size.numel}, .group = size.group});
  }
  return plan_buckets(model, Strategy::owner_broadcast);
}

BucketPlan plan_of(const Numels& numels) {
  std::vector<Size> sizes;
  for (const std::int64_t numel : numels) {
    sizes.push_back({.numel = numel});
  }
  return plan_of(sizes);
}

std::vector<int> owners(const BucketPlan& plan) {
  std::vector<int> owners;
  for (const Bucket& bucket : plan.buckets) {
    owners.push_back(bucket.owner);
  }
  return owners;
}

std::vector<int> dealt(BucketPlan plan, const DeviceMesh& mesh) {
  deal_owners(plan, mesh);
  return owners(plan);
}

/// Elements on each rank of a copy.
Numels loads(const BucketPlan& plan, const DeviceMesh& mesh) {
  Numels loads(static_cast<std::size_t>(mesh.shard));
  for (const Bucket& bucket : plan.buckets) {
    const int width = bucket.group.empty() ? 1 : mesh.ep;
    for (int i = 0; i < width; ++i) {
      loads.at(static_cast<std::size_t>(bucket.owner * width + i)) += bucket.numel;
    }
  }
  return loads;
}

TEST_CASE("the owners drawn in owners.hpp") {
  BucketPlan plan = plan_of(Numels{7, 5, 4, 4, 2});
  deal_owners(plan, {.shard = 3});
  CHECK(owners(plan) == std::vector<int>{0, 1, 2, 2, 1});
  CHECK(loads(plan, {.shard = 3}) == Numels{7, 7, 8});
}

TEST_CASE("the largest are dealt first, wherever they are in the plan") {
  CHECK(dealt(plan_of(Numels{2, 4, 7, 4, 5}), {.shard = 3}) == std::vector<int>{1, 2, 0, 2, 1});
}

TEST_CASE("of equal buckets the lower goes first, of equal ranks the lower gets it") {
  CHECK(dealt(plan_of(Numels{3, 3, 3, 3, 3}), {.shard = 2}) == std::vector<int>{0, 1, 0, 1, 0});
  CHECK(dealt(plan_of(Numels{3, 3, 3}), {.shard = 7}) == std::vector<int>{0, 1, 2});
  CHECK(dealt(plan_of(Numels{0, 0, 5}), {.shard = 2}) == std::vector<int>{1, 1, 0});
  CHECK(dealt(plan_of(Numels{1, 2, 3}), {.shard = 1}) == std::vector<int>{0, 0, 0});
  CHECK(dealt(BucketPlan(), {.shard = 4}).empty());
}

TEST_CASE("what is dealt is elements, not bytes, and frozen parameters count") {
  Model model;
  const UnitId unit = model.add_unit("a");
  model.add_parameter(unit, {.name = "half", .shape = {6}, .dtype = DType::bf16});
  model.add_parameter(unit, {.name = "frozen", .shape = {5}, .trainable = false});
  model.add_parameter(unit, {.name = "w", .shape = {4}});
  const BucketPlan plan = plan_buckets(model, Strategy::owner_broadcast);
  CHECK(dealt(plan, {.shard = 2}) == std::vector<int>{0, 1, 1});
}

TEST_CASE("every copy has the same owners: they are places in it") {
  const BucketPlan plan = plan_of(Numels{7, 5, 4, 4, 2});
  CHECK(dealt(plan, {.replicate = 2, .shard = 3}) == dealt(plan, {.shard = 3}));
}

TEST_CASE("loads differ by no more than the largest bucket") {
  std::uint32_t state = 1;  // of a linear congruential generator (Numerical Recipes)
  for (const std::int64_t numel_max : {1, 5, 100}) {
    for (const std::size_t buckets : {1U, 2U, 5U, 40U}) {
      for (const int shard : {1, 2, 3, 4, 7}) {
        Numels numels(buckets);
        for (std::int64_t& numel : numels) {
          state = state * 1664525U + 1013904223U;
          numel = static_cast<std::int64_t>(state >> 16U) % (numel_max + 1);
        }
        CAPTURE(numels);
        CAPTURE(shard);
        BucketPlan plan = plan_of(numels);
        deal_owners(plan, {.shard = shard});
        const auto [least, most] = std::ranges::minmax(loads(plan, {.shard = shard}));
        CHECK(most - least <= std::ranges::max(numels));
      }
    }
  }
}

TEST_CASE("a bucket of experts loads all ranks that its owner stands for") {
  const DeviceMesh mesh{.shard = 4, .ep = 2};
  BucketPlan plan = plan_of({{10}, {6, "ep"}, {5}, {4, "ep"}, {3}});
  deal_owners(plan, mesh);
  //                      rank 0   rank 1   rank 2   rank 3
  //     10 to rank 0         10        0        0        0
  //     6 of experts         10        0        6        6   the other pair has a rank with 10
  //     5 to rank 1          10        5        6        6
  //     4 of experts         10        5       10       10
  //     3 to rank 1          10        8       10       10
  CHECK(owners(plan) == std::vector<int>{0, 1, 1, 1, 1});
  CHECK(loads(plan, mesh) == Numels{10, 8, 10, 10});
}

TEST_CASE("the fullest of the ranks that an owner stands for counts, not the first") {
  // Ranks 0 to 3 have 10, 9, 8 and 7 + 6 when the experts' bucket is dealt.
  const BucketPlan plan = plan_of({{10}, {9}, {8}, {7}, {6}, {1, "ep"}});
  CHECK(dealt(plan, {.shard = 4, .ep = 2}) == std::vector<int>{0, 1, 2, 3, 3, 0});
}

TEST_CASE("the owner of a bucket of experts is a place in their group") {
  const std::vector<Size> sizes{{4, "ep"}, {4, "ep"}, {4, "ep"}};
  CHECK(dealt(plan_of(sizes), {.shard = 4, .ep = 2}) == std::vector<int>{0, 1, 0});
  // Groups of one: every rank owns the experts that it holds.
  CHECK(dealt(plan_of(sizes), {.shard = 4, .ep = 4}) == std::vector<int>{0, 0, 0});
  // One set of experts: as if there were no groups.
  CHECK(dealt(plan_of(sizes), {.shard = 4, .ep = 1}) == std::vector<int>{0, 1, 2});
}

}  // namespace
}  // namespace troupe
