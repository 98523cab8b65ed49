#include "troupe/core/bucket_plan.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace troupe {
namespace {

using Ids = std::vector<ParameterId>;

TEST_CASE("the parameters of a unit share a bucket") {
  Model model;
  const UnitId a = model.add_unit("a");
  const UnitId b = model.add_unit("b");
  model.add_parameter(a, {.name = "w", .shape = {3}});
  model.add_parameter(b, {.name = "w", .shape = {5}});
  model.add_parameter(a, {.name = "v", .shape = {4}});
  const BucketPlan plan = plan_buckets(model);

  REQUIRE(plan.buckets.size() == 2);
  CHECK(plan.buckets[0].id == 0);
  CHECK(plan.buckets[0].parameters == Ids{0, 2});
  CHECK(plan.buckets[0].numel == 7);
  CHECK(plan.buckets[0].units == std::vector<UnitId>{a});
  CHECK(plan.buckets[1].parameters == Ids{1});
  CHECK(plan.unit_buckets == std::vector<std::vector<BucketId>>{{0}, {1}});
  CHECK(plan.bucket_of == std::vector<BucketId>{0, 1, 0});
}

TEST_CASE("dtype, trainability and group each cut a unit") {
  Model model;
  const UnitId unit = model.add_unit("a");
  model.add_parameter(unit, {.name = "w", .shape = {1}});
  model.add_parameter(unit, {.name = "half", .shape = {1}, .dtype = DType::bf16});
  model.add_parameter(unit, {.name = "frozen", .shape = {1}, .trainable = false});
  model.add_parameter(unit, {.name = "expert", .shape = {1}, .group = "experts"});
  model.add_parameter(unit, {.name = "v", .shape = {1}});
  const BucketPlan plan = plan_buckets(model);

  REQUIRE(plan.buckets.size() == 4);
  CHECK(plan.buckets[0].parameters == Ids{0, 4});
  CHECK(plan.buckets[1].dtype == DType::bf16);
  CHECK(plan.buckets[2].trainable == false);
  CHECK(plan.buckets[3].group == "experts");
  CHECK(plan.unit_buckets[unit] == std::vector<BucketId>{0, 1, 2, 3});
}

TEST_CASE("a tied parameter has a bucket apart from those of its unit, used by all its units") {
  Model model;
  const UnitId embed = model.add_unit("embed");
  model.add_parameter(embed, {.name = "positions", .shape = {2}});
  model.add_parameter(embed, {.name = "tokens", .shape = {8}});
  const UnitId head = model.add_unit("head");
  model.add_parameter(head, {.name = "bias", .shape = {2}});
  model.tie(head, "out", embed, "tokens");
  const BucketPlan plan = plan_buckets(model);

  REQUIRE(plan.buckets.size() == 3);
  CHECK(plan.buckets[1].tied);
  CHECK(plan.buckets[1].units == std::vector<UnitId>{embed, head});
  CHECK_FALSE(plan.buckets[0].tied);
  CHECK(plan.unit_buckets == std::vector<std::vector<BucketId>>{{0, 1}, {1, 2}});
}

TEST_CASE("a bucket is numbered by the first unit that uses it, also if another owns it") {
  Model model;
  const UnitId first = model.add_unit("first");
  const UnitId second = model.add_unit("second");
  const UnitId owner = model.add_unit("owner");
  model.add_parameter(second, {.name = "w", .shape = {1}});
  model.add_parameter(owner, {.name = "w", .shape = {1}});
  model.tie(first, "w", owner, "w");
  const BucketPlan plan = plan_buckets(model);

  REQUIRE(plan.buckets.size() == 2);
  CHECK(plan.buckets[0].units == std::vector<UnitId>{first, owner});
  CHECK(plan.buckets[1].units == std::vector<UnitId>{second});
}

TEST_CASE("parameters of different owners that are tied alike are not mixed") {
  Model model;
  const UnitId a = model.add_unit("a");
  const UnitId b = model.add_unit("b");
  model.add_parameter(a, {.name = "w", .shape = {1}});
  model.add_parameter(b, {.name = "w", .shape = {1}});
  model.tie(b, "v", a, "w");
  model.tie(a, "v", b, "w");
  const BucketPlan plan = plan_buckets(model);
  CHECK(plan.buckets.size() == 2);
  CHECK(plan.unit_buckets == std::vector<std::vector<BucketId>>{{0, 1}, {0, 1}});
}

TEST_CASE("with a limit, buckets fill greedily in registration order and split no parameter") {
  Model model;
  const UnitId unit = model.add_unit("a");
  for (const std::int64_t numel : {4, 4, 4, 20, 1, 0, 7}) {
    model.add_parameter(
        unit, {.name = "w" + std::to_string(model.parameters().size()), .shape = {numel}});
  }
  const BucketPlan plan = plan_buckets(model, Strategy::full_shard, 32);  // 8 elements of fp32

  REQUIRE(plan.buckets.size() == 4);
  CHECK(plan.buckets[0].parameters == Ids{0, 1});
  CHECK(plan.buckets[1].parameters == Ids{2});
  CHECK(plan.buckets[2].parameters == Ids{3});  // larger than the limit alone
  CHECK(plan.buckets[3].parameters == Ids{4, 5, 6});
  CHECK(plan.unit_buckets[unit] == std::vector<BucketId>{0, 1, 2, 3});
}

TEST_CASE("the limit is in bytes, so a bf16 bucket holds twice the elements") {
  Model model;
  const UnitId unit = model.add_unit("a");
  for (const char* name : {"a", "b"}) {
    model.add_parameter(unit, {.name = name, .shape = {8}, .dtype = DType::bf16});
  }
  CHECK(plan_buckets(model, Strategy::full_shard, 32).buckets.size() == 1);
  CHECK(plan_buckets(model, Strategy::full_shard, 31).buckets.size() == 2);
}

TEST_CASE("a unit without parameters has no bucket, a parameter without elements has one") {
  Model model;
  model.add_unit("dropout");
  const UnitId empty = model.add_unit("empty");
  model.add_parameter(empty, {.name = "w", .shape = {0, 4}});
  const BucketPlan plan = plan_buckets(model);
  CHECK(plan.unit_buckets == std::vector<std::vector<BucketId>>{{}, {0}});
  CHECK(plan.buckets[0].numel == 0);
  CHECK(plan_buckets(Model()).buckets.empty());
}

TEST_CASE("a bucket is described by its unit and at most three of its parameters") {
  Model model;
  const UnitId unit = model.add_unit("block.1");
  for (const char* name : {"wq", "wk", "wv"}) {
    model.add_parameter(unit, {.name = name, .shape = {1}});
  }
  CHECK(plan_buckets(model).describe(0, model) == "0 'block.1' (wq, wk, wv)");
  model.add_parameter(unit, {.name = "wo", .shape = {1}});
  CHECK(plan_buckets(model).describe(0, model) == "0 'block.1' (wq, wk, wv, ...)");
}

}  // namespace
}  // namespace troupe
