#include "troupe/core/memory_plan.hpp"

#include "troupe/core/text.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

using detail::concat;

constexpr std::uint32_t no_class = SlotPlan::no_class;

/// What the units ask of one class, in buckets.
struct Demand {
  std::uint32_t units = 0;          ///< that have a bucket of the class
  std::uint32_t own_max = 0;        ///< of one unit
  std::uint32_t ancestors_max = 0;  ///< of the units open around one unit, besides its own
  std::uint32_t need = 0;           ///< of one unit, its ancestors and what reaches across it
  UnitId largest = no_unit;         ///< the unit that needs most
  std::uint32_t across = 0;         ///< how much of its need only reaches across it
};

/// Per unit, buckets that are busy through it though neither it nor a unit around it may use them.
using Reaching = std::vector<std::vector<BucketId>>;

/// What the buckets ask of one kind of slots.
struct SlotNeeds {
  std::vector<std::int64_t> bytes;  ///< per bucket; 0: it never takes a slot
  std::vector<bool> alone;          ///< per bucket: it has a class for itself
  Reaching reaching;
};

/// Everything else that tells parameters from gradients.
struct Kind {
  std::string_view option;
  std::string_view outsized_option;
  std::optional<int> limit;
  std::optional<int> outsized_limit;
  std::uint32_t lookahead;  ///< default of the ordinary class, in units
  std::string_view noun;
  std::string_view without_spare;
};

Failure refusal(std::string text) {
  return detail::failure(ErrorCode::bad_configuration, std::move(text));
}

/// Slot bytes of `numel` elements; never 0, so that every slot has an address of its own.
std::int64_t slot_bytes(std::int64_t numel, DType dtype) {
  constexpr std::int64_t alignment = MemoryPlan::arena_alignment_bytes;
  const std::int64_t bytes =
      std::max<std::int64_t>(numel, 1) * static_cast<std::int64_t>(size_of(dtype));
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Cuts buckets into classes, largest first: within one, the smallest is more than half the
/// largest.
/// - `bytes`: per bucket; 0: it never takes a slot
/// - `alone`: per bucket; it has a class for itself
SlotPlan make_classes(std::span<const std::int64_t> bytes, const std::vector<bool>& alone) {
  std::vector<BucketId> order;
  for (std::size_t bucket = 0; bucket < bytes.size(); ++bucket) {
    if (bytes[bucket] > 0) {
      order.push_back(static_cast<BucketId>(bucket));
    }
  }
  std::ranges::sort(order, {}, [&](BucketId bucket) { return std::pair(-bytes[bucket], bucket); });

  SlotPlan slots;
  slots.class_of.assign(bytes.size(), no_class);
  std::optional<std::size_t> shared;  // the class that may still grow
  for (const BucketId bucket : order) {
    std::size_t index = slots.classes.size();
    if (!alone[bucket] && shared && 2 * bytes[bucket] > slots.classes[*shared].bytes_per_slot) {
      index = *shared;
    } else {
      slots.classes.push_back({.bytes_per_slot = bytes[bucket]});
      shared = alone[bucket] ? shared : index;
    }
    slots.classes[index].buckets.push_back(bucket);
    slots.class_of[bucket] = static_cast<std::uint32_t>(index);
  }
  for (SlotClass& slot_class : slots.classes) {
    std::ranges::sort(slot_class.buckets);
  }
  return slots;
}

/// Fused buckets by the units from their first to their last: in backward they fill all that time.
Reaching fused_buckets(const BucketPlan& plan) {
  Reaching reaching(plan.unit_buckets.size());
  for (const Bucket& bucket : plan.buckets) {
    if (!bucket.tied && bucket.units.size() > 1) {
      for (UnitId unit = bucket.units.front(); unit <= bucket.units.back(); ++unit) {
        reaching[unit].push_back(bucket.id);
      }
    }
  }
  return reaching;
}

std::vector<Demand> demands_of(const Model& model,
                               const BucketPlan& plan,
                               const SlotPlan& slots,
                               const Reaching& reaching) {
  std::vector<Demand> demands(slots.classes.size());
  std::vector<UnitId> seen_by(plan.buckets.size(), no_unit);  // the last unit that counted a bucket
  std::vector<std::uint32_t> own(slots.classes.size());
  std::vector<std::uint32_t> around(slots.classes.size());
  std::vector<std::uint32_t> across(slots.classes.size());
  for (const Unit& unit : model.units()) {
    std::vector<std::uint32_t> touched;
    const auto count = [&](const std::vector<BucketId>& buckets,
                           std::vector<std::uint32_t>& counts) {
      for (const BucketId bucket : buckets) {
        const std::uint32_t index = slots.class_of[bucket];
        if (index != no_class && seen_by[bucket] != unit.id) {
          seen_by[bucket] = unit.id;
          ++counts[index];
          touched.push_back(index);
        }
      }
    };
    count(plan.unit_buckets[unit.id], own);
    for (const UnitId ancestor : model.ancestors(unit.id)) {
      count(plan.unit_buckets[ancestor], around);
    }
    count(reaching[unit.id], across);
    for (const std::uint32_t index : touched) {
      Demand& demand = demands[index];
      demand.own_max = std::max(demand.own_max, own[index]);
      demand.ancestors_max = std::max(demand.ancestors_max, around[index]);
      if (own[index] + around[index] + across[index] > demand.need) {
        demand.need = own[index] + around[index] + across[index];
        demand.largest = unit.id;
        demand.across = across[index];
      }
      demand.units += own[index] > 0 ? 1U : 0U;
      own[index] = 0;
      around[index] = 0;
      across[index] = 0;
    }
  }
  return demands;
}

/// The class that most units use (the larger one of equals); no_class if there is none.
std::uint32_t ordinary_class(const SlotPlan& slots,
                             const std::vector<Demand>& demands,
                             const std::vector<bool>& alone) {
  std::uint32_t ordinary = no_class;
  for (std::uint32_t index = 0; index < slots.classes.size(); ++index) {
    const bool eligible = !alone[slots.classes[index].buckets.front()];
    if (eligible && (ordinary == no_class || demands[index].units > demands[ordinary].units)) {
      ordinary = index;
    }
  }
  return ordinary;
}

/// The refusal of a limit: names the least value that does for all classes that the option sets,
/// which are `classes`.
Failure refuse_limit(const Model& model,
                     const Kind& kind,
                     int limit,
                     const std::vector<Demand>& demands,
                     const SlotPlan& slots,
                     std::span<const std::uint32_t> classes) {
  const std::uint32_t neediest = *std::ranges::max_element(
      classes, {}, [&](std::uint32_t index) { return demands[index].need; });
  const std::uint32_t need = demands[neediest].need;
  const SlotClass& slot_class = slots.classes[neediest];
  const bool filled_through = demands[neediest].across > 0;
  return refusal(
      concat(slot_class.option, " is ", limit, ", but unit '",
             model.units()[demands[neediest].largest].name, "', with the units open around it",
             filled_through ? " and the fused buckets filled before and after it" : "", ", needs ",
             detail::count_of(need, kind.noun), " of ", slot_class.bytes_per_slot,
             " bytes at once; the least value that would do is ", need));
}

/// Sets option, need and count of every class.
Result<void> count_slots(const Model& model,
                         const Kind& kind,
                         const std::vector<Demand>& demands,
                         const std::vector<bool>& alone,
                         std::uint32_t ordinary,
                         SlotPlan& slots,
                         std::vector<std::string>& warnings) {
  std::vector<std::uint32_t> set_by_option;
  std::vector<std::uint32_t> set_by_outsized_option;
  for (std::uint32_t index = 0; index < slots.classes.size(); ++index) {
    SlotClass& slot_class = slots.classes[index];
    const Demand& demand = demands[index];
    slot_class.need = demand.need;
    slot_class.count = 1;
    if (alone[slot_class.buckets.front()]) {
      continue;
    }
    const auto buckets = static_cast<std::uint32_t>(slot_class.buckets.size());
    const bool outsized = index < ordinary;  // largest first
    slot_class.option = outsized ? kind.outsized_option : kind.option;
    (outsized ? set_by_outsized_option : set_by_option).push_back(index);
    // The second is more only if buckets reach across units.
    const std::uint32_t ahead = std::max(demand.ancestors_max + kind.lookahead * demand.own_max,
                                         demand.need + demand.own_max);
    const std::uint32_t chosen = outsized ? demand.need : ahead;
    const auto limit = outsized ? kind.outsized_limit : kind.limit;
    slot_class.count = std::min(buckets, limit ? static_cast<std::uint32_t>(*limit) : chosen);
    if (!outsized && slot_class.count == demand.need && slot_class.count < buckets) {
      warnings.push_back(concat(slot_class.option, ": ",
                                detail::count_of(slot_class.count, kind.noun), " of ",
                                slot_class.bytes_per_slot, " bytes are no more than unit '",
                                model.units()[demand.largest].name,
                                "' needs at once; without one to spare, ", kind.without_spare));
    }
  }
  const auto too_few = [&](std::uint32_t index) {
    return slots.classes[index].count < slots.classes[index].need;
  };
  if (kind.limit && std::ranges::any_of(set_by_option, too_few)) {
    return refuse_limit(model, kind, *kind.limit, demands, slots, set_by_option);
  }
  if (kind.outsized_limit && std::ranges::any_of(set_by_outsized_option, too_few)) {
    return refuse_limit(model, kind, *kind.outsized_limit, demands, slots, set_by_outsized_option);
  }
  return {};
}

/// Lays the slots of all classes one behind the other from `start`.
void place_slots(SlotPlan& slots, std::int64_t start) {
  for (SlotClass& slot_class : slots.classes) {
    slot_class.first = slots.slot_count();
    for (std::uint32_t i = 0; i < slot_class.count; ++i) {
      slots.slot_offset.push_back(start + slots.bytes);
      slots.bytes += slot_class.bytes_per_slot;
    }
  }
}

std::optional<Failure> refuse_values(const MemoryLimits& limits) {
  const std::pair<std::string_view, std::optional<int>> counts[] = {
      {"slots", limits.slots},
      {"outsized_slots", limits.outsized_slots},
      {"gradient_slots", limits.gradient_slots},
      {"outsized_gradient_slots", limits.outsized_gradient_slots},
  };
  for (const auto& [option, value] : counts) {
    if (value && *value < 1) {
      return refusal(concat(option, " is ", *value, ", expected at least 1"));
    }
  }
  const std::tuple<std::string_view, std::optional<int>, bool, std::string_view> unread[] = {
      {"slots", limits.slots, limits.keep_gathered, "buffer"},
      {"outsized_slots", limits.outsized_slots, limits.keep_gathered, "buffer"},
      {"gradient_slots", limits.gradient_slots, limits.keep_gradients, "gradient buffer"},
      {"outsized_gradient_slots", limits.outsized_gradient_slots, limits.keep_gradients,
       "gradient buffer"},
  };
  for (const auto& [option, value, kept, noun] : unread) {
    if (value && kept) {
      return refusal(concat(option, " has no meaning when every bucket keeps a ", noun,
                            " of its own; leave it out"));
    }
  }
  if (limits.prefetch_depth && *limits.prefetch_depth < 0) {
    return refusal(concat("prefetch_depth is ", *limits.prefetch_depth,
                          ", expected at least 0 (0: no prefetch)"));
  }
  return std::nullopt;
}

/// Cuts, counts and places the slots of one kind. Returns its ordinary class; `no_class` if there
/// is none.
Result<std::uint32_t> plan_slots(const Model& model,
                                 const BucketPlan& plan,
                                 const Kind& kind,
                                 const SlotNeeds& needs,
                                 std::int64_t start,
                                 SlotPlan& slots,
                                 std::vector<std::string>& warnings) {
  slots = make_classes(needs.bytes, needs.alone);
  const auto demands = demands_of(model, plan, slots, needs.reaching);
  const std::uint32_t ordinary = ordinary_class(slots, demands, needs.alone);
  if (auto counted = count_slots(model, kind, demands, needs.alone, ordinary, slots, warnings);
      !counted) {
    return counted.failure();
  }
  place_slots(slots, start);
  return ordinary;
}

int default_depth(const BucketPlan& plan, const SlotPlan& slots, std::uint32_t ordinary) {
  if (ordinary != no_class) {
    return static_cast<int>(slots.classes[ordinary].count) - 1;
  }
  std::size_t buckets_max = 0;
  for (const std::vector<BucketId>& buckets : plan.unit_buckets) {
    buckets_max = std::max(buckets_max, buckets.size());
  }
  return 2 * static_cast<int>(buckets_max);
}

}  // namespace

Result<MemoryPlan> plan_memory(const Model& model,
                               const BucketPlan& plan,
                               const std::vector<BucketLayout>& layouts,
                               const MemoryLimits& limits) {
  if (auto refused = refuse_values(limits)) {
    return *std::move(refused);
  }
  const std::size_t bucket_count = plan.buckets.size();
  SlotNeeds gathered{.bytes = std::vector<std::int64_t>(bucket_count),
                     .alone = std::vector<bool>(bucket_count, limits.keep_gathered),
                     .reaching = Reaching(plan.unit_buckets.size())};
  SlotNeeds reduced{.bytes = std::vector<std::int64_t>(bucket_count),  // 0: frozen
                    .alone = std::vector<bool>(bucket_count),
                    .reaching = fused_buckets(plan)};
  for (std::size_t i = 0; i < bucket_count; ++i) {
    const Bucket& bucket = plan.buckets[i];
    const std::int64_t numel = layouts[i].numel_padded();
    gathered.bytes[i] = slot_bytes(numel, bucket.dtype);
    reduced.bytes[i] = bucket.trainable ? slot_bytes(numel, limits.gradient_dtype) : 0;
    reduced.alone[i] = bucket.tied || limits.keep_gradients;
  }
  std::int64_t staging_bytes = 0;
  if (const DType sent = limits.reduce_dtype.value_or(limits.gradient_dtype);
      sent != limits.gradient_dtype) {
    for (std::size_t i = 0; i < bucket_count; ++i) {
      staging_bytes =
          std::max(staging_bytes,
                   plan.buckets[i].trainable ? slot_bytes(layouts[i].numel_padded(), sent) : 0);
    }
  }
  for (const UnitId unit : limits.kept_units) {
    for (const BucketId bucket : plan.unit_buckets[unit]) {
      gathered.alone[bucket] = true;
    }
  }

  MemoryPlan memory;
  const Kind parameters{.option = "slots",
                        .outsized_option = "outsized_slots",
                        .limit = limits.slots,
                        .outsized_limit = limits.outsized_slots,
                        .lookahead = 3,
                        .noun = "slot",
                        .without_spare = "nothing is gathered ahead"};
  const auto ordinary =
      plan_slots(model, plan, parameters, gathered, 0, memory.parameters, memory.warnings);
  if (!ordinary) {
    return ordinary.failure();
  }
  const Kind gradients{.option = "gradient_slots",
                       .outsized_option = "outsized_gradient_slots",
                       .limit = limits.gradient_slots,
                       .outsized_limit = limits.outsized_gradient_slots,
                       .lookahead = 2,
                       .noun = "gradient slot",
                       .without_spare = "each backward waits for the reduce before it"};
  if (const auto planned = plan_slots(model, plan, gradients, reduced, memory.parameters.bytes,
                                      memory.gradients, memory.warnings);
      !planned) {
    return planned.failure();
  }
  memory.arena_bytes = memory.parameters.bytes + memory.gradients.bytes;
  memory.staging_bytes = staging_bytes;
  memory.prefetch_depth =
      limits.prefetch_depth.value_or(default_depth(plan, memory.parameters, ordinary.value()));
  return memory;
}

}  // namespace troupe
