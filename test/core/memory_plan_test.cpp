#include "troupe/core/memory_plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace troupe {
namespace {

/// A model in which each unit has parameters of given numbers of elements, each its own bucket.
class Planned {
 public:
  UnitId unit(const std::string& name,
              const std::vector<std::int64_t>& numels,
              UnitId parent = no_unit) {
    const UnitId unit = model.add_unit(name, parent);
    for (std::size_t i = 0; i < numels.size(); ++i) {
      // A group for each parameter keeps their buckets apart.
      model.add_parameter(unit, spec("w" + std::to_string(i), numels[i]));
    }
    return unit;
  }
  void root(const std::string& name, std::int64_t numel) { model.add_parameter(spec(name, numel)); }

  Result<MemoryPlan> plan(const MemoryLimits& limits = {}) const {
    const BucketPlan buckets = plan_buckets(model);
    std::vector<BucketLayout> layouts;
    layouts.reserve(buckets.buckets.size());
    for (const Bucket& bucket : buckets.buckets) {
      layouts.emplace_back(std::vector<std::int64_t>{bucket.numel}, 2, 1);
    }
    return plan_memory(model, buckets, layouts, limits);
  }
  MemoryPlan planned(const MemoryLimits& limits = {}) const {
    auto result = plan(limits);
    REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.failure().text));
    return result.value();
  }
  std::string refusal(const MemoryLimits& limits) const {
    const auto result = plan(limits);
    REQUIRE_FALSE(result.ok());
    CHECK(result.failure().code == ErrorCode::bad_configuration);
    return result.failure().text;
  }

  Model model;

 private:
  static ParameterSpec spec(const std::string& name, std::int64_t numel) {
    return {.name = name, .shape = {numel}, .dtype = DType::f32, .trainable = true, .group = name};
  }
};

std::vector<std::uint32_t> counts(const SlotPlan& slots) {
  std::vector<std::uint32_t> counts(slots.classes.size());
  std::ranges::transform(slots.classes, counts.begin(), &SlotClass::count);
  return counts;
}

std::vector<std::uint32_t> needs(const SlotPlan& slots) {
  std::vector<std::uint32_t> needs(slots.classes.size());
  std::ranges::transform(slots.classes, needs.begin(), &SlotClass::need);
  return needs;
}

using Numbers = std::vector<std::uint32_t>;

/// embed, eight blocks, head: 4096, 1024 each, 4000 elements.
Planned transformer() {
  Planned model;
  model.unit("embed", {4096});
  for (int i = 0; i < 8; ++i) {
    model.unit("block." + std::to_string(i), {1024});
  }
  model.unit("head", {4000});
  return model;
}

TEST_CASE("by default: 3 slots for blocks, 1 for outsized buckets, 2 gradient slots") {
  const MemoryPlan plan = transformer().planned();
  REQUIRE(plan.parameters.classes.size() == 2);
  CHECK(plan.parameters.classes[0].buckets == std::vector<BucketId>{0, 9});
  CHECK(plan.parameters.classes[0].bytes_per_slot == 4096 * 4);
  CHECK(plan.parameters.classes[0].option == "outsized_slots");
  CHECK(plan.parameters.classes[1].bytes_per_slot == 1024 * 4);
  CHECK(plan.parameters.classes[1].option == "slots");
  CHECK(plan.parameters.class_of == Numbers{0, 1, 1, 1, 1, 1, 1, 1, 1, 0});
  CHECK(counts(plan.parameters) == Numbers{1, 3});
  CHECK(counts(plan.gradients) == Numbers{1, 2});
  CHECK(plan.prefetch_depth == 2);
  CHECK(plan.warnings.empty());
}

TEST_CASE("slots lie one behind the other, gradients behind parameters") {
  const MemoryPlan plan = transformer().planned();
  CHECK(plan.parameters.classes[0].first == 0);
  CHECK(plan.parameters.classes[1].first == 1);
  CHECK(plan.parameters.slot_offset == std::vector<std::int64_t>{0, 16384, 20480, 24576});
  CHECK(plan.parameters.bytes == 28672);
  CHECK(plan.gradients.slot_offset == std::vector<std::int64_t>{28672, 45056, 49152});
  CHECK(plan.gradients.bytes == 24576);
  CHECK(plan.arena_bytes == 28672 + 24576);
}

TEST_CASE("within a class the smallest bucket is more than half the largest") {
  Planned model;
  for (const std::int64_t numel : {1280, 704, 640, 384, 320}) {
    model.unit("u" + std::to_string(numel), {numel});
  }
  const MemoryPlan plan = model.planned();
  REQUIRE(plan.parameters.classes.size() == 3);
  CHECK(plan.parameters.classes[0].buckets == std::vector<BucketId>{0, 1});  // 640 is exactly half
  CHECK(plan.parameters.classes[1].buckets == std::vector<BucketId>{2, 3});  // 320 as well
  CHECK(plan.parameters.classes[2].buckets == std::vector<BucketId>{4});
}

TEST_CASE("slot bytes are padded to the world size, the dtype counted, rounded up to 256") {
  Planned model;
  const UnitId unit = model.model.add_unit("a");
  model.model.add_parameter(unit, {.name = "w", .shape = {129}, .dtype = DType::bf16});
  const MemoryPlan plan = model.planned();
  CHECK(plan.parameters.classes[0].bytes_per_slot == 512);  // 130 elements, 260 bytes
  CHECK(plan.gradients.classes[0].bytes_per_slot == 768);   // 520 bytes in fp32
  const MemoryPlan half = model.planned({.gradient_dtype = DType::bf16});
  CHECK(half.gradients.classes[0].bytes_per_slot == 512);
}

TEST_CASE("gradients that are cast for the wire need room for the largest trainable bucket once") {
  Planned model;
  model.unit("a", {1000, 200});
  model.unit("b", {1002});
  const UnitId frozen = model.model.add_unit("c");
  model.model.add_parameter(frozen, {.name = "w", .shape = {5000}, .trainable = false});
  CHECK(model.planned().staging_bytes == 0);
  CHECK(model.planned({.reduce_dtype = DType::f32}).staging_bytes == 0);
  CHECK(model.planned({.gradient_dtype = DType::bf16}).staging_bytes == 0);
  const MemoryPlan plan = model.planned({.reduce_dtype = DType::bf16});
  CHECK(plan.staging_bytes == 2048);  // 2004 bytes
  CHECK(plan.arena_bytes == plan.parameters.bytes + plan.gradients.bytes);
  const MemoryPlan wide =
      model.planned({.gradient_dtype = DType::bf16, .reduce_dtype = DType::f32});
  CHECK(wide.staging_bytes == 4096);  // 4008 bytes
}

TEST_CASE("the ordinary class is the one that most units use; of equals the larger") {
  Planned model;
  model.unit("a", {4096});
  model.unit("b", {1024, 1024, 1024});
  CHECK(model.planned().parameters.classes[0].option == "slots");
  model.unit("c", {1024});
  CHECK(model.planned().parameters.classes[0].option == "outsized_slots");
}

TEST_CASE("need is the largest unit with the units open around it") {
  Planned model;
  const UnitId layer = model.unit("layer", {1000});
  model.unit("layer.attention", {1000, 1000}, layer);
  model.unit("layer.mlp", {1000}, layer);
  model.unit("other", {1000});
  CHECK(needs(model.planned().parameters) == Numbers{3});
  model.root("scale", 1000);
  CHECK(needs(model.planned().parameters) == Numbers{4});
  // 2 around, and 3 x 2 of the largest unit, capped to the 6 buckets that there are.
  CHECK(counts(model.planned().parameters) == Numbers{6});
  for (int i = 0; i < 6; ++i) {
    model.unit("block." + std::to_string(i), {1000});
  }
  CHECK(counts(model.planned().parameters) == Numbers{8});
  CHECK(counts(model.planned().gradients) == Numbers{6});
  CHECK(model.planned().prefetch_depth == 7);
}

TEST_CASE("an outsized class has by default what is needed") {
  Planned model = transformer();
  const UnitId pair = model.unit("pair", {4096, 4096});
  model.unit("pair.inner", {4096}, pair);
  const MemoryPlan plan = model.planned();
  CHECK(needs(plan.parameters) == Numbers{3, 1});
  CHECK(counts(plan.parameters) == Numbers{3, 3});
  CHECK(counts(plan.gradients) == Numbers{3, 2});
}

TEST_CASE("smaller classes get as many slots as the ordinary one") {
  Planned model = transformer();
  for (int i = 0; i < 4; ++i) {
    model.unit("norm." + std::to_string(i), {64});
  }
  CHECK(counts(model.planned().parameters) == Numbers{1, 3, 3});
  CHECK(counts(model.planned({.slots = 4}).parameters) == Numbers{1, 4, 4});
}

TEST_CASE("a count above the number of buckets of the class is capped to it") {
  const MemoryPlan plan = transformer().planned(
      {.slots = 100, .outsized_slots = 100, .gradient_slots = 100, .outsized_gradient_slots = 100});
  CHECK(counts(plan.parameters) == Numbers{2, 8});
  CHECK(counts(plan.gradients) == Numbers{2, 8});
  CHECK(plan.prefetch_depth == 7);
  CHECK(plan.warnings.empty());

  Planned small;
  small.unit("a", {10});
  small.unit("b", {10});
  CHECK(counts(small.planned().parameters) == Numbers{2});
  CHECK(small.planned().prefetch_depth == 1);
}

TEST_CASE("a limit below what is needed is refused with the unit and the least value") {
  Planned model;
  const UnitId layer = model.unit("layer", {1000});
  model.unit("layer.mlp", {1000, 1000}, layer);
  model.unit("other", {1000});
  CHECK(model.refusal({.slots = 2}) ==
        "slots is 2, but unit 'layer.mlp', with the units open around it, needs 3 slots of 4096 "
        "bytes at once; the least value that would do is 3");
  CHECK(
      model.refusal({.gradient_slots = 2}) ==
      "gradient_slots is 2, but unit 'layer.mlp', with the units open around it, needs 3 gradient "
      "slots of 4096 bytes at once; the least value that would do is 3");
  CHECK(model.planned({.slots = 3, .gradient_slots = 3}).parameters.classes[0].count == 3);
}

TEST_CASE("the least value does for all classes that the option sets") {
  Planned model;
  model.unit("a", {1000, 1000});
  model.unit("b", {1000, 100, 100, 100});
  model.unit("c", {1000});
  CHECK(model.refusal({.slots = 1})
            .ends_with("unit 'b', with the units open around it, needs 3 slots "
                       "of 512 bytes at once; the least value that would do is 3"));
  CHECK(counts(model.planned({.slots = 3}).parameters) == Numbers{3, 3});
}

TEST_CASE("limits of outsized classes are refused under their own names") {
  Planned model = transformer();
  model.unit("pair", {4096, 4096});
  CHECK(model.refusal({.outsized_slots = 1}).starts_with("outsized_slots is 1, but unit 'pair'"));
  CHECK(model.refusal({.outsized_gradient_slots = 1})
            .starts_with("outsized_gradient_slots is 1, but unit 'pair'"));
}

TEST_CASE("values that no model could use are refused by name") {
  const Planned model = transformer();
  CHECK(model.refusal({.slots = 0}) == "slots is 0, expected at least 1");
  CHECK(model.refusal({.outsized_slots = -1}) == "outsized_slots is -1, expected at least 1");
  CHECK(model.refusal({.gradient_slots = 0}) == "gradient_slots is 0, expected at least 1");
  CHECK(model.refusal({.outsized_gradient_slots = 0}) ==
        "outsized_gradient_slots is 0, expected at least 1");
  CHECK(model.refusal({.prefetch_depth = -2})
            .starts_with("prefetch_depth is -2, expected at least 0"));
  CHECK(model.planned({.prefetch_depth = 0}).prefetch_depth == 0);
  CHECK(model.planned({.prefetch_depth = 5}).prefetch_depth == 5);
}

TEST_CASE("without a slot to spare there is a warning") {
  const MemoryPlan plan = transformer().planned({.slots = 1, .gradient_slots = 1});
  REQUIRE(plan.warnings.size() == 2);
  CHECK(plan.warnings[0] ==
        "slots: 1 slot of 4096 bytes are no more than unit 'block.0' needs at once; without one to "
        "spare, nothing is gathered ahead");
  CHECK(plan.warnings[1] ==
        "gradient_slots: 1 gradient slot of 4096 bytes are no more than unit 'block.0' needs at "
        "once; without one to spare, each backward waits for the reduce before it");
  CHECK(plan.prefetch_depth == 0);
  CHECK(transformer().planned({.slots = 2}).warnings.empty());
}

TEST_CASE("a tied trainable bucket has a gradient slot for itself") {
  Planned model;
  const UnitId embed = model.unit("embed", {1024});
  const UnitId a = model.unit("a", {1024});
  model.unit("b", {1024});
  const UnitId head = model.model.add_unit("head");
  model.model.tie(head, "out", embed, "w0");
  static_cast<void>(a);
  const MemoryPlan plan = model.planned();
  CHECK(counts(plan.parameters) == Numbers{3});
  REQUIRE(plan.gradients.classes.size() == 2);
  CHECK(plan.gradients.class_of == Numbers{0, 1, 1});
  CHECK(plan.gradients.classes[0].count == 1);
  CHECK(plan.gradients.classes[0].option.empty());
  CHECK(plan.gradients.classes[1].option == "gradient_slots");
  CHECK(counts(model.planned({.gradient_slots = 1}).gradients) == Numbers{1, 1});
}

TEST_CASE("a frozen bucket takes no gradient slot") {
  Planned model;
  const UnitId unit = model.model.add_unit("a");
  model.model.add_parameter(unit, {.name = "w", .shape = {64}, .trainable = false});
  const UnitId other = model.model.add_unit("b");
  model.model.tie(other, "w", unit, "w");
  const MemoryPlan plan = model.planned({.gradient_slots = 1});
  CHECK(plan.gradients.class_of == Numbers{SlotPlan::no_class});
  CHECK(plan.gradients.slot_count() == 0);
  CHECK(plan.arena_bytes == 256);
}

TEST_CASE("a bucket without elements has a slot like the smallest buckets") {
  Planned model;
  model.unit("empty", {0});
  model.unit("small", {1});
  const MemoryPlan plan = model.planned();
  REQUIRE(plan.parameters.classes.size() == 1);
  CHECK(plan.parameters.classes[0].bytes_per_slot == 256);
  CHECK(plan.parameters.slot_offset == std::vector<std::int64_t>{0, 256});
}

TEST_CASE("a model without parameters needs no memory") {
  Planned model;
  model.unit("dropout", {});
  const MemoryPlan plan = model.planned({.slots = 2});
  CHECK(plan.arena_bytes == 0);
  CHECK(plan.prefetch_depth == 0);
  CHECK(plan.parameters.classes.empty());
}

}  // namespace
}  // namespace troupe
