// Slots for buckets that stay gathered, that keep their gradients, or that are fused over units.
#include "troupe/core/memory_plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe {
namespace {

using Numbers = std::vector<std::uint32_t>;

Result<MemoryPlan> plan_of(const Model& model,
                           const BucketPlan& buckets,
                           const MemoryLimits& limits) {
  std::vector<BucketLayout> layouts;
  layouts.reserve(buckets.buckets.size());
  for (const Bucket& bucket : buckets.buckets) {
    layouts.emplace_back(std::vector<std::int64_t>{bucket.numel}, 2, 1);
  }
  return plan_memory(model, buckets, layouts, limits);
}

MemoryPlan planned(const Model& model, const BucketPlan& buckets, const MemoryLimits& limits = {}) {
  const auto result = plan_of(model, buckets, limits);
  REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.failure().text));
  return result.value();
}

std::string refusal(const Model& model, const BucketPlan& buckets, const MemoryLimits& limits) {
  const auto result = plan_of(model, buckets, limits);
  REQUIRE_FALSE(result.ok());
  CHECK(result.failure().code == ErrorCode::bad_configuration);
  return result.failure().text;
}

Numbers counts(const SlotPlan& slots) {
  Numbers counts(slots.classes.size());
  std::ranges::transform(slots.classes, counts.begin(), &SlotClass::count);
  return counts;
}

Numbers needs(const SlotPlan& slots) {
  Numbers needs(slots.classes.size());
  std::ranges::transform(slots.classes, needs.begin(), &SlotClass::need);
  return needs;
}

/// Every bucket alone in a class of one slot that no option sets.
bool each_alone(const SlotPlan& slots) {
  return std::ranges::all_of(slots.classes, [](const SlotClass& slot_class) {
    return slot_class.buckets.size() == 1 && slot_class.count == 1 && slot_class.need == 1 &&
           slot_class.option.empty();
  });
}

/// Units of 1000 elements each, with as many fp32 parameters as given.
Model units_of(const std::vector<int>& parameters) {
  Model model;
  for (const int count : parameters) {
    const UnitId unit = model.add_unit("u" + std::to_string(model.units().size()));
    for (int i = 0; i < count; ++i) {
      model.add_parameter(unit, {.name = "w" + std::to_string(i), .shape = {1000}});
    }
  }
  return model;
}

/// Fused up to `numel` elements of fp32.
BucketPlan fused(const Model& model, std::int64_t numel) {
  return plan_buckets(model, Strategy::sharded_optimizer, numel * 4);
}

TEST_CASE("buckets that stay gathered have a slot each, and gradient slots as ever") {
  Model model;
  model.add_parameter(model.add_unit("embed"), {.name = "w", .shape = {4096}});
  for (int i = 0; i < 4; ++i) {
    model.add_parameter(model.add_unit("block." + std::to_string(i)),
                        {.name = "w", .shape = {1024}});
  }
  const BucketPlan buckets = plan_buckets(model);
  const MemoryPlan plan = planned(model, buckets, {.keep_gathered = true});
  CHECK(counts(plan.parameters) == Numbers{1, 1, 1, 1, 1});
  CHECK(each_alone(plan.parameters));
  CHECK(plan.parameters.class_of == Numbers{0, 1, 2, 3, 4});
  CHECK(plan.parameters.slot_offset == std::vector<std::int64_t>{0, 16384, 20480, 24576, 28672});
  CHECK(plan.parameters.bytes == 32768);
  CHECK(plan.warnings.empty());
  CHECK(counts(plan.gradients) == Numbers{1, 2});
  CHECK(plan.arena_bytes == 32768 + 16384 + 2 * 4096);
  // Without it: one slot for the embedding, three for the blocks.
  CHECK(planned(model, buckets).parameters.bytes == 16384 + 3 * 4096);
}

TEST_CASE("buckets that keep their gradients have a gradient slot each, frozen ones none") {
  Model model = units_of({1, 1, 1, 1});
  model.add_parameter(0, {.name = "frozen", .shape = {1000}, .trainable = false});
  const BucketPlan buckets = plan_buckets(model);
  const MemoryPlan plan = planned(model, buckets, {.keep_gradients = true});
  CHECK(counts(plan.gradients) == Numbers{1, 1, 1, 1});
  CHECK(each_alone(plan.gradients));
  CHECK(plan.gradients.class_of == Numbers{0, SlotPlan::no_class, 1, 2, 3});
  CHECK(plan.warnings.empty());
  // Gathered buckets take turns as ever: two of unit 0, three units' worth, of 5 there are.
  CHECK(counts(plan.parameters) == Numbers{5});
  CHECK(counts(planned(model, buckets).gradients) == Numbers{2});
}

TEST_CASE("the buckets of kept units have slots of their own, the others share") {
  Model model = units_of({1, 2, 1, 1, 1, 1, 1});
  model.tie(6, "tied", 0, "w0");
  const BucketPlan buckets = plan_buckets(model, Strategy::owner_broadcast);
  REQUIRE(buckets.buckets.size() == 8);
  const MemoryPlan plan = planned(model, buckets, {.kept_units = {1, 6}});
  // Unit 6 uses the bucket of unit 0 too: kept are 0, 1, 2 and 7. Left are units 2 to 5.
  CHECK(plan.parameters.class_of == Numbers{0, 1, 2, 3, 3, 3, 3, 4});
  CHECK(counts(plan.parameters) == Numbers{1, 1, 1, 3, 1});
  CHECK(plan.parameters.classes[3].option == "slots");
  CHECK(plan.parameters.classes[4].option.empty());
  CHECK(plan.prefetch_depth == 2);
  CHECK(counts(planned(model, buckets, {.slots = 1, .kept_units = {1, 6}}).parameters) ==
        Numbers{1, 1, 1, 1, 1});
  // Without them two of unit 1 are needed at once.
  CHECK(refusal(model, buckets, {.slots = 1}).ends_with("the least value that would do is 2"));
}

TEST_CASE("without shared slots the prefetch depth is twice the buckets of the largest unit") {
  const auto depth = [](const std::vector<int>& parameters, const MemoryLimits& limits) {
    const Model model = units_of(parameters);
    return planned(model, plan_buckets(model, Strategy::owner_broadcast), limits).prefetch_depth;
  };
  CHECK(depth({1, 1, 1}, {.keep_gathered = true}) == 2);
  CHECK(depth({1, 3, 2}, {.keep_gathered = true}) == 6);
  CHECK(depth({1, 3, 2}, {.kept_units = {0, 1, 2}}) == 6);
  CHECK(depth({1, 3, 2}, {.prefetch_depth = 1, .keep_gathered = true}) == 1);
  CHECK(depth({0}, {.keep_gathered = true}) == 0);
  CHECK(depth({1, 3, 2}, {.kept_units = {1}}) == 2);  // 3 slots for 3 buckets, less one
}

TEST_CASE("a count of slots that are not shared is refused by name") {
  const Model model = units_of({1, 1});
  const BucketPlan buckets = plan_buckets(model);
  CHECK(refusal(model, buckets, {.slots = 2, .keep_gathered = true}) ==
        "slots has no meaning when every bucket keeps a buffer of its own; leave it out");
  CHECK(refusal(model, buckets, {.outsized_slots = 1, .keep_gathered = true}) ==
        "outsized_slots has no meaning when every bucket keeps a buffer of its own; leave it out");
  CHECK(refusal(model, buckets, {.gradient_slots = 2, .keep_gradients = true}) ==
        "gradient_slots has no meaning when every bucket keeps a gradient buffer of its own; leave "
        "it out");
  CHECK(refusal(model, buckets, {.outsized_gradient_slots = 1, .keep_gradients = true})
            .starts_with("outsized_gradient_slots has no meaning"));
  CHECK(plan_of(model, buckets, {.gradient_slots = 1, .keep_gathered = true}).ok());
  CHECK(plan_of(model, buckets, {.slots = 1, .keep_gradients = true}).ok());
}

TEST_CASE("the fused gradients drawn in memory_plan.hpp") {
  const Model model = units_of({2, 2, 1, 1});
  const BucketPlan buckets = fused(model, 3000);
  REQUIRE(buckets.buckets.size() == 2);
  CHECK(buckets.unit_buckets == std::vector<std::vector<BucketId>>{{0}, {0, 1}, {1}, {1}});
  CHECK(needs(planned(model, buckets).gradients) == Numbers{2});
}

TEST_CASE("fused buckets that follow one another need one gradient slot, and have two") {
  const Model model = units_of({1, 1, 1, 1, 1, 1, 1, 1});
  const MemoryPlan plan = planned(model, fused(model, 2000));
  CHECK(needs(plan.gradients) == Numbers{1});
  CHECK(counts(plan.gradients) == Numbers{2});
}

TEST_CASE("a fused bucket is needed by the units between those that use it") {
  // Every second unit is in another group: buckets {0, 2} and {1, 3}; then one for each unit.
  Model model;
  for (const char* name : {"a", "b", "c", "d"}) {
    const std::string group = model.units().size() % 2 == 0 ? "" : "ep";
    model.add_parameter(model.add_unit(name), {.name = "w", .shape = {1000}, .group = group});
  }
  for (int i = 0; i < 4; ++i) {
    model.add_parameter(model.add_unit("more." + std::to_string(i)),
                        {.name = "w", .shape = {2000}});
  }
  const BucketPlan buckets = fused(model, 2000);
  REQUIRE(buckets.buckets.size() == 2 + 4);
  const MemoryPlan plan = planned(model, buckets);
  CHECK(needs(plan.gradients) == Numbers{2});
  CHECK(counts(plan.gradients) == Numbers{3});  // and one to spare
  CHECK(refusal(model, buckets, {.gradient_slots = 1}) ==
        "gradient_slots is 1, but unit 'b', with the units open around it and the fused buckets "
        "filled before and after it, needs 2 gradient slots of 8192 bytes at once; the least value "
        "that would do is 2");
  CHECK(planned(model, buckets, {.gradient_slots = 2}).warnings.size() == 1);
  // What is gathered is needed while it is used only.
  CHECK(needs(plan.parameters) == Numbers{1});
}

TEST_CASE("a fused bucket of a unit that stays open is needed by all units inside it") {
  Model model;
  const UnitId layer = model.add_unit("layer");
  model.add_parameter(layer, {.name = "w", .shape = {1000}});
  for (const char* name : {"layer.a", "layer.b", "layer.c"}) {
    model.add_parameter(model.add_unit(name, layer), {.name = "w", .shape = {1000}});
  }
  // {layer, a} is filled from the begin of layer to its end; {b, c} meanwhile.
  CHECK(needs(planned(model, fused(model, 2000)).gradients) == Numbers{2});
  // {layer}, {a}, ...: layer's and that of one unit inside.
  CHECK(needs(planned(model, fused(model, 1000)).gradients) == Numbers{2});
  CHECK(needs(planned(model, fused(model, 4000)).gradients) == Numbers{1});
  CHECK(counts(planned(model, fused(model, 4000)).gradients) == Numbers{1});
}

TEST_CASE("tied buckets keep a gradient slot of their own beside fused ones") {
  Model model = units_of({2, 1, 1, 1});
  model.tie(3, "tied", 0, "w0");
  const BucketPlan buckets = fused(model, 2000);
  REQUIRE(buckets.buckets.size() == 3);  // the tied one; {0, 1}; {2, 3}
  const MemoryPlan plan = planned(model, buckets);
  CHECK(plan.gradients.class_of == Numbers{1, 0, 0});
  CHECK(needs(plan.gradients) == Numbers{1, 1});
  CHECK(plan.gradients.classes[1].option.empty());
}

/// Backward as a trainer runs it: the root around everything, units inside their parents, the last
/// first. Most gradient slots of one class that are being filled at once.
class Backward {
 public:
  Backward(const Model& model, const BucketPlan& plan, const SlotPlan& slots)
      : model_(model),
        plan_(plan),
        slots_(slots),
        units_left_(plan.buckets.size()),
        begun_(plan.buckets.size()),
        most_(slots.classes.size()) {
    for (const Bucket& bucket : plan.buckets) {
      units_left_[bucket.id] = bucket.units.size();
    }
    const bool rooted = model.root() != no_unit;
    if (rooted) {
      begin(model.root());
    }
    run(no_unit);
    if (rooted) {
      end(model.root());
    }
  }

  const Numbers& most() const { return most_; }

 private:
  void run(UnitId parent) {
    for (auto unit = static_cast<UnitId>(model_.units().size()); unit-- > 0;) {
      if (model_.units()[unit].parent == parent && unit != model_.root()) {
        begin(unit);
        run(unit);
        end(unit);
      }
    }
  }
  void begin(UnitId unit) {
    for (const BucketId bucket : plan_.unit_buckets[unit]) {
      begun_[bucket] = true;
    }
    Numbers filling(most_.size());
    for (const Bucket& bucket : plan_.buckets) {
      if (begun_[bucket.id] && units_left_[bucket.id] > 0) {
        const std::uint32_t index = slots_.class_of[bucket.id];
        most_[index] = std::max(most_[index], ++filling[index]);
      }
    }
  }
  void end(UnitId unit) {
    for (const BucketId bucket : plan_.unit_buckets[unit]) {
      --units_left_[bucket];
    }
  }

  const Model& model_;
  const BucketPlan& plan_;
  const SlotPlan& slots_;
  std::vector<std::size_t> units_left_;
  std::vector<bool> begun_;
  Numbers most_;
};

TEST_CASE("what fused gradients need is what a backward in order of registration fills at once") {
  std::uint32_t state = 5;  // of a linear congruential generator (Numerical Recipes)
  const auto below = [&](std::uint32_t end) {
    state = state * 1664525U + 1013904223U;
    return (state >> 16U) % end;
  };
  std::uint32_t highest = 0;
  for (int round = 0; round < 300; ++round) {
    Model model;
    const std::uint32_t units = 1 + below(10);
    std::uint32_t made = 0;
    const std::uint32_t root_at = below(20);  // never, half of the time
    UnitId last = no_unit;
    while (made < units) {
      // Inside the last unit, or beside it, or beside one of its parents.
      UnitId parent = last;
      while (parent != no_unit && below(3) != 0) {
        parent = model.units()[parent].parent;
      }
      last = model.add_unit("u" + std::to_string(made), parent);
      for (std::uint32_t i = below(4); i > 0; --i) {
        model.add_parameter(last, {.name = "w" + std::to_string(i),
                                   .shape = {64 * (1 + below(4))},
                                   .dtype = below(2) == 0 ? DType::f32 : DType::bf16});
      }
      if (made++ == root_at) {
        model.add_parameter({.name = "scale", .shape = {64}});
      }
    }
    for (const std::int64_t numel : {64, 256, 1024}) {
      CAPTURE(round);
      CAPTURE(numel);
      const BucketPlan buckets = fused(model, numel);
      const MemoryPlan plan = planned(model, buckets);
      CHECK(needs(plan.gradients) == Backward(model, buckets, plan.gradients).most());
      for (const SlotClass& slot_class : plan.gradients.classes) {
        CHECK(slot_class.count >= slot_class.need);
        highest = std::max(highest, slot_class.need);
      }
    }
  }
  CHECK(highest >= 4);  // there was something to count
}

}  // namespace
}  // namespace troupe
