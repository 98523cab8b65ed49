#include "schedule_random.hpp"

#include "schedule_fixture.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::testing {

namespace {

/// One slot class per `class_of` value, each large enough for the largest unit, with up to `spare`
/// slots more.
std::vector<SchedulePlan::Class> random_classes(
    Random& random,
    const std::vector<std::vector<BucketId>>& unit_buckets,
    const std::vector<std::uint32_t>& class_of,
    std::uint32_t class_count,
    std::uint32_t spare) {
  std::vector<SchedulePlan::Class> classes;
  SlotId first = 0;
  for (std::uint32_t index = 0; index < class_count; ++index) {
    std::uint32_t need = 1;
    for (const auto& buckets : unit_buckets) {
      const auto own =
          std::ranges::count_if(buckets, [&](BucketId b) { return class_of[b] == index; });
      need = std::max(need, static_cast<std::uint32_t>(own));
    }
    const std::uint32_t count = need + random.below(spare + 1);
    classes.push_back({first, count, "limit"});
    first += count;
  }
  return classes;
}

/// Units with one or several buckets each, some of which are tied, into `plan`; which ones are.
std::vector<bool> random_units(Random& random, SchedulePlan& plan) {
  const std::uint32_t units = 2 + random.below(8);
  const std::uint32_t buckets = units + random.below(4);
  plan.unit_buckets.resize(units);
  for (BucketId bucket = 0; bucket < buckets; ++bucket) {
    plan.unit_buckets[bucket < units ? bucket : random.below(units)].push_back(bucket);
  }
  std::vector<bool> tied(buckets);
  for (std::uint32_t ties = random.percent(40) ? 1 + random.below(2) : 0; ties > 0; --ties) {
    const BucketId bucket = random.below(buckets);
    auto& second = plan.unit_buckets[random.below(units)];
    if (std::ranges::find(second, bucket) == second.end()) {
      second.insert(std::ranges::upper_bound(second, bucket), bucket);
      tied[bucket] = true;
    }
  }
  if (random.percent(10)) {
    plan.unit_buckets[random.below(units)].clear();
  }
  return tied;
}

/// Gathers within a smaller group, and sums over replicas.
void random_groups(Random& random, SchedulePlan& plan) {
  if (random.percent(40)) {
    for (std::size_t bucket = 0; bucket < plan.slot_class.size(); ++bucket) {
      plan.regathers.push_back(random.percent(80));
    }
  }
  constexpr std::array sums{ReplicaSum::none, ReplicaSum::none, ReplicaSum::every_reduce,
                            ReplicaSum::at_step_end};
  plan.replica_sum = sums[random.below(sums.size())];
}

}  // namespace

void shuffle(Random& random, std::vector<BucketId>& buckets) {
  for (auto i = static_cast<std::uint32_t>(buckets.size()); i > 1; --i) {
    std::swap(buckets[i - 1], buckets[random.below(i)]);
  }
}

SchedulePlan random_plan(Random& random) {
  SchedulePlan plan;
  const std::vector<bool> tied = random_units(random, plan);
  const std::uint32_t slot_classes = 1 + random.below(3);
  std::uint32_t gradient_classes = 1 + random.below(2);
  const std::uint32_t shared_gradient_classes = gradient_classes;
  const bool ties_apart = random.percent(70);
  for (BucketId bucket = 0; bucket < tied.size(); ++bucket) {
    plan.slot_class.push_back(random.below(slot_classes));
    std::uint32_t gradient_class = random.below(shared_gradient_classes);
    if (tied[bucket] && ties_apart) {
      gradient_class = gradient_classes++;
    }
    plan.gradient_class.push_back(random.percent(85) ? gradient_class : SchedulePlan::no_class);
  }
  if (random.percent(30)) {  // gradients keep their buffers
    plan.accumulates = true;
    gradient_classes = 0;
    for (std::uint32_t& own : plan.gradient_class) {
      own = own == SchedulePlan::no_class ? own : gradient_classes++;
    }
  }
  plan.slot_classes = random_classes(random, plan.unit_buckets, plan.slot_class, slot_classes, 4);
  plan.gradient_classes =
      random_classes(random, plan.unit_buckets, plan.gradient_class, gradient_classes, 3);
  plan.prefetch_depth = static_cast<int>(random.below(5));
  random_groups(random, plan);
  give_names(plan);
  return plan;
}

SchedulePlan random_agreed_plan(Random& random, bool relieved) {
  SchedulePlan plan;
  const auto buckets = static_cast<std::uint32_t>(random_units(random, plan).size());
  const bool shared_gradient_slots = random.percent(50);
  plan.accumulates = !shared_gradient_slots;
  const std::uint32_t gradient_classes = shared_gradient_slots ? 1 + random.below(2) : buckets;
  for (BucketId bucket = 0; bucket < buckets; ++bucket) {
    plan.slot_class.push_back(bucket);
    plan.slot_classes.push_back({bucket, 1, ""});
    const std::uint32_t own = shared_gradient_slots ? random.below(gradient_classes) : bucket;
    plan.gradient_class.push_back(random.percent(80) ? own : SchedulePlan::no_class);
    plan.first_order.gathers.push_back(bucket);
    if (plan.gradient_class.back() != SchedulePlan::no_class) {
      plan.first_order.reduces.insert(plan.first_order.reduces.begin(), bucket);
    }
  }
  plan.gradient_classes =
      random_classes(random, plan.unit_buckets, plan.gradient_class, gradient_classes, 3);
  SlotId first = 0;
  for (SchedulePlan::Class& limit : plan.gradient_classes) {
    limit.first = first;
    limit.count = relieved ? limit.count : buckets;
    first += limit.count;
  }
  if (random.percent(30)) {
    shuffle(random, plan.first_order.gathers);
    shuffle(random, plan.first_order.reduces);
  }
  plan.prefetch_depth = static_cast<int>(random.below(5));
  plan.agreed = true;
  random_groups(random, plan);
  give_names(plan);
  return plan;
}

AgreedOrder order_to_adopt(std::uint32_t id, const AgreedOrder& recorded) {
  AgreedOrder order = recorded;
  if (id != 0) {
    Random random(id);
    shuffle(random, order.gathers);
    shuffle(random, order.reduces);
  }
  return order;
}

std::string describe(const Event& event) {
  constexpr std::array names{
      "begin_micro_batch", "end_micro_batch", "begin_forward", "end_forward", "begin_backward",
      "end_backward",      "begin_eval",      "end_eval",      "step_end",    "begin_update",
      "updated",           "reshard",         "adopt"};
  return std::string(names[static_cast<std::size_t>(event.kind)]) + " " + std::to_string(event.id) +
         (event.reduces ? "" : ", without a reduce");
}

Result<void> apply(const Event& event, Schedule& schedule) {
  switch (event.kind) {
    case EventKind::begin_micro_batch:
      return schedule.begin_micro_batch(event.reduces);
    case EventKind::end_micro_batch:
      return schedule.end_micro_batch();
    case EventKind::begin_forward:
      return schedule.begin(event.id, false);
    case EventKind::end_forward:
      return schedule.end(event.id, false);
    case EventKind::begin_backward:
      return schedule.begin(event.id, true);
    case EventKind::end_backward:
      return schedule.end(event.id, true);
    case EventKind::begin_eval:
      return schedule.begin_eval();
    case EventKind::end_eval:
      return schedule.end_eval();
    case EventKind::step_end:
      return schedule.step_end();
    case EventKind::begin_update:
      return schedule.begin_update();
    case EventKind::updated:
      return schedule.updated(event.id, event.changed);
    case EventKind::reshard:
      return schedule.reshard();
    case EventKind::adopt:
      schedule.adopt(order_to_adopt(event.id, schedule.recorded()));
      return {};
  }
  return {};
}

}  // namespace troupe::testing
