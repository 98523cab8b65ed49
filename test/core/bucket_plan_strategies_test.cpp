// Which parameters the strategies other than full_shard put together.
#include "troupe/core/bucket_plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe {
namespace {

using Ids = std::vector<ParameterId>;
using Units = std::vector<UnitId>;

std::vector<Ids> parameters_of(const BucketPlan& plan) {
  std::vector<Ids> lists;
  for (const Bucket& bucket : plan.buckets) {
    lists.push_back(bucket.parameters);
  }
  return lists;
}

TEST_CASE("the buckets of each strategy drawn in bucket_plan.hpp") {
  Model model;
  for (const char* name : {"block.0", "block.1"}) {
    const UnitId unit = model.add_unit(name);
    for (const char* parameter : {"wq", "wk", "w1"}) {
      model.add_parameter(unit, {.name = parameter, .shape = {4}});
    }
  }
  using Lists = std::vector<Ids>;
  CHECK(parameters_of(plan_buckets(model)) == Lists{{0, 1, 2}, {3, 4, 5}});
  const BucketPlan fused = plan_buckets(model, Strategy::sharded_optimizer, 32);
  CHECK(parameters_of(fused) == Lists{{0, 1}, {2, 3}, {4, 5}});
  CHECK(fused.buckets[0].units == Units{0});
  CHECK(fused.buckets[1].units == Units{0, 1});
  CHECK(fused.buckets[2].units == Units{1});
  CHECK(fused.unit_buckets == std::vector<std::vector<BucketId>>{{0, 1}, {1, 2}});
  CHECK(fused.bucket_of == std::vector<BucketId>{0, 0, 1, 1, 2, 2});
  const BucketPlan whole = plan_buckets(model, Strategy::owner_broadcast);
  CHECK(parameters_of(whole) == Lists{{0}, {1}, {2}, {3}, {4}, {5}});
  CHECK(whole.unit_buckets == std::vector<std::vector<BucketId>>{{0, 1, 2}, {3, 4, 5}});
}

TEST_CASE("a fused bucket serves several units and is not tied; nobody owns it yet") {
  Model model;
  for (const char* name : {"a", "b", "c"}) {
    model.add_parameter(model.add_unit(name), {.name = "w", .shape = {1}});
  }
  const BucketPlan plan = plan_buckets(model, Strategy::sharded_optimizer, 1000);
  REQUIRE(plan.buckets.size() == 1);
  CHECK(plan.buckets[0].units == Units{0, 1, 2});
  CHECK(plan.buckets[0].numel == 3);
  CHECK_FALSE(plan.buckets[0].tied);
  CHECK(plan.buckets[0].owner == -1);
}

TEST_CASE("what is fused across units shares dtype, trainability and group") {
  Model model;
  for (const char* name : {"a", "b"}) {
    const UnitId unit = model.add_unit(name);
    model.add_parameter(unit, {.name = "w", .shape = {1}});
    model.add_parameter(unit, {.name = "half", .shape = {1}, .dtype = DType::bf16});
    model.add_parameter(unit, {.name = "frozen", .shape = {1}, .trainable = false});
    model.add_parameter(unit, {.name = "expert", .shape = {1}, .group = "ep"});
  }
  const BucketPlan plan = plan_buckets(model, Strategy::sharded_optimizer, 1000);
  CHECK(parameters_of(plan) == std::vector<Ids>{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(plan.buckets[1].dtype == DType::bf16);
  CHECK_FALSE(plan.buckets[2].trainable);
  CHECK(plan.buckets[3].group == "ep");
}

TEST_CASE("fusing splits no parameter, and an oversized one is alone") {
  Model model;
  for (const std::int64_t numel : {4, 4, 4, 20, 1, 0, 7}) {
    const UnitId unit = model.add_unit("u" + std::to_string(model.units().size()));
    model.add_parameter(unit, {.name = "w", .shape = {numel}});
  }
  const BucketPlan plan = plan_buckets(model, Strategy::sharded_optimizer, 32);
  CHECK(parameters_of(plan) == std::vector<Ids>{{0, 1}, {2}, {3}, {4, 5, 6}});
  // A byte less than two take.
  CHECK(parameters_of(plan_buckets(model, Strategy::sharded_optimizer, 31)) ==
        std::vector<Ids>{{0}, {1}, {2}, {3}, {4, 5}, {6}});
}

TEST_CASE("parameters that were added in turns are fused by unit all the same") {
  Model model;
  for (const char* name : {"a", "b", "c", "d"}) {
    model.add_unit(name);
  }
  for (const char* name : {"w", "bias"}) {
    for (UnitId unit = 0; unit < 4; ++unit) {
      model.add_parameter(unit, {.name = name, .shape = {1}});
    }
  }
  const BucketPlan plan = plan_buckets(model, Strategy::sharded_optimizer, 16);
  CHECK(parameters_of(plan) == std::vector<Ids>{{0, 4, 1, 5}, {2, 6, 3, 7}});
  CHECK(plan.buckets[1].units == Units{2, 3});
}

TEST_CASE("under every strategy a tied parameter does not mix with others") {
  Model model;
  const UnitId embed = model.add_unit("embed");
  model.add_parameter(embed, {.name = "positions", .shape = {1}});
  model.add_parameter(embed, {.name = "tokens", .shape = {1}});
  model.add_parameter(embed, {.name = "scale", .shape = {1}});
  const UnitId head = model.add_unit("head");
  model.add_parameter(head, {.name = "bias", .shape = {1}});
  model.tie(head, "out", embed, "tokens");
  model.tie(head, "factor", embed, "scale");

  const BucketPlan fused = plan_buckets(model, Strategy::sharded_optimizer, 1000);
  CHECK(parameters_of(fused) == std::vector<Ids>{{0, 3}, {1, 2}});
  CHECK_FALSE(fused.buckets[0].tied);
  CHECK(fused.buckets[1].tied);
  CHECK(fused.buckets[1].units == Units{embed, head});

  const BucketPlan whole = plan_buckets(model, Strategy::owner_broadcast);
  CHECK(parameters_of(whole) == std::vector<Ids>{{0}, {1}, {2}, {3}});
  CHECK(whole.buckets[1].tied);
  CHECK(whole.buckets[2].units == Units{embed, head});
}

TEST_CASE("owner_broadcast fuses within a unit, and only with a limit") {
  Model model;
  for (const char* name : {"a", "b"}) {
    const UnitId unit = model.add_unit(name);
    for (const std::int64_t numel : {4, 4, 20, 0, 0}) {
      model.add_parameter(
          unit, {.name = "w" + std::to_string(model.parameters().size()), .shape = {numel}});
    }
  }
  CHECK(plan_buckets(model, Strategy::owner_broadcast).buckets.size() == 10);
  const BucketPlan fused = plan_buckets(model, Strategy::owner_broadcast, 32);
  CHECK(parameters_of(fused) == std::vector<Ids>{{0, 1}, {2}, {3, 4}, {5, 6}, {7}, {8, 9}});
}

TEST_CASE("by default a fused bucket holds a sixteenth of the model, at most 25 MiB") {
  const auto default_of = [](std::int64_t numel, DType dtype = DType::f32) {
    Model model;
    const UnitId unit = model.add_unit("a");
    model.add_parameter(unit, {.name = "w", .shape = {numel}, .dtype = dtype});
    model.add_parameter(unit, {.name = "frozen", .shape = {1000}, .trainable = false});
    return fused_bytes_default(model);
  };
  CHECK(default_of(64) == 16);
  CHECK(default_of(64, DType::bf16) == 8);
  CHECK(default_of(65) == 17);  // 16.25
  CHECK(default_of(1) == 1);
  CHECK(default_of(0) == 1);
  constexpr std::int64_t mebi = 1 << 20;
  CHECK(default_of(100 * mebi - 4) == 25 * mebi - 1);
  CHECK(default_of(100 * mebi) == 25 * mebi);
  CHECK(default_of(1000 * mebi) == 25 * mebi);

  Model model;
  for (int i = 0; i < 64; ++i) {
    model.add_parameter(model.add_unit("u" + std::to_string(i)), {.name = "w", .shape = {8}});
  }
  const BucketPlan plan = plan_buckets(model, Strategy::sharded_optimizer);
  CHECK(plan.buckets.size() == 16);
  CHECK(plan.buckets[15].units == Units{60, 61, 62, 63});
}

TEST_CASE("every strategy puts each parameter into one bucket and lists it for all its units") {
  Model model;
  std::uint32_t state = 3;  // of a linear congruential generator (Numerical Recipes)
  const auto below = [&](std::uint32_t end) {
    state = state * 1664525U + 1013904223U;
    return (state >> 16U) % end;
  };
  for (int i = 0; i < 9; ++i) {
    model.add_unit("u" + std::to_string(i));
  }
  for (int i = 0; i < 60; ++i) {
    const std::string name = "w" + std::to_string(i);
    const UnitId owner = below(9);
    model.add_parameter(owner, {.name = name,
                                .shape = {below(9)},
                                .dtype = below(2) == 0 ? DType::f32 : DType::bf16,
                                .trainable = below(4) != 0,
                                .group = below(4) != 0 ? "" : "ep"});
    const UnitId other = below(9);
    if (below(4) == 0 && other != owner) {
      model.tie(other, "tied" + name, owner, name);
    }
  }
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    for (const std::int64_t bytes_max : {0, 1, 16, 64}) {
      CAPTURE(row_of(strategy).name);
      CAPTURE(bytes_max);
      const BucketPlan plan = plan_buckets(model, strategy, bytes_max);
      Ids seen;
      for (const Bucket& bucket : plan.buckets) {
        CHECK(&bucket == &plan.buckets[bucket.id]);
        std::set<UnitId> units;
        std::int64_t numel = 0;
        std::int64_t bytes = 0;
        for (const ParameterId id : bucket.parameters) {
          const Parameter& parameter = model.parameters()[id];
          seen.push_back(id);
          units.insert(parameter.used_by.begin(), parameter.used_by.end());
          numel += parameter.numel;
          bytes += parameter.numel * static_cast<std::int64_t>(size_of(parameter.spec.dtype));
          CHECK(plan.bucket_of[id] == bucket.id);
          CHECK(parameter.spec.dtype == bucket.dtype);
          CHECK(parameter.spec.trainable == bucket.trainable);
          CHECK(parameter.spec.group == bucket.group);
          CHECK((parameter.used_by.size() > 1) == bucket.tied);
          CHECK((!bucket.tied || parameter.used_by == bucket.units));
        }
        CHECK(bucket.numel == numel);
        CHECK(bucket.units == Units(units.begin(), units.end()));
        CHECK((bytes_max == 0 || bytes <= bytes_max || bucket.parameters.size() == 1));
        if (strategy != Strategy::sharded_optimizer) {
          CHECK((bucket.tied || bucket.units.size() == 1));
        }
        for (UnitId unit = 0; unit < 9; ++unit) {
          CHECK(std::ranges::count(plan.unit_buckets[unit], bucket.id) ==
                static_cast<int>(units.count(unit)));
        }
      }
      std::ranges::sort(seen);
      CHECK(seen.size() == model.parameters().size());
      CHECK(std::ranges::adjacent_find(seen) == seen.end());
      CHECK(std::ranges::all_of(plan.unit_buckets,
                                [](const auto& ids) { return std::ranges::is_sorted(ids); }));
      CHECK(std::ranges::is_sorted(plan.buckets, {}, [](const Bucket& bucket) {
        return std::pair(bucket.units.front(), bucket.parameters.front());
      }));
    }
  }
}

TEST_CASE("a fused bucket is described by its first and last unit, a tied one by its owner") {
  Model model;
  for (const char* name : {"block.1", "block.2", "block.3"}) {
    const UnitId unit = model.add_unit(name);
    model.add_parameter(unit, {.name = "wq", .shape = {1}});
    model.add_parameter(unit, {.name = "wk", .shape = {1}});
  }
  const UnitId last = model.add_unit("last");
  model.add_parameter(last, {.name = "w", .shape = {1}});
  model.tie(0, "w", last, "w");
  const BucketPlan fused = plan_buckets(model, Strategy::sharded_optimizer, 1000);
  CHECK(fused.describe(0, model) == "0 'block.1'..'block.3' (wq, wk, wq, ...)");
  CHECK(fused.describe(1, model) == "1 'last' (w)");
  const BucketPlan pairs = plan_buckets(model, Strategy::sharded_optimizer, 8);
  CHECK(pairs.describe(2, model) == "2 'block.2' (wq, wk)");
}

}  // namespace
}  // namespace troupe
