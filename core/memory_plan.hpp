/// How many slots of which size a rank holds: memory bounded by construction. Pure, the same on
/// every rank.
///
/// Buckets are put into *size classes* (within a class the smallest is more than half the largest);
/// each class has slots of its largest bucket's size. The class that most units use is the one of
/// *ordinary* buckets; classes above it are *outsized* (embedding, head), classes below it are
/// small and get as many slots as the ordinary one. A bucket that stays gathered (`keep_gathered`,
/// `kept_units`) has a class with one slot for itself.
///
/// Gradient slots have size classes of their own; a tied bucket keeps its gradient through several
/// units, which may be far apart, so it has a class with one slot for itself. A fused bucket fills
/// from the backward of its last unit to that of its first, so what a unit needs at once are its
/// own buckets, those of the units open around it, and those that reach across it. By default there
/// is room for one unit's buckets more.
///
///     unit                 0      1      2      3
///     fused buckets       |--- 0 ---||--- 1 -----|        1 is filled by 3, 2 and 1, 0 by 1 and 0:
///     needed at once       1      2      1      1         unit 1 needs both
///
/// Source of the defaults, a timing model of the schedule: three slots are the knee of the step
/// time, one outsized slot costs under a point, only one gradient slot 4 to 49 %.
///
///     arena   | class 0: slot 0 | class 1: slot 1 | slot 2 | slot 3 | gradients: slot 0 | ...
#pragma once

#include "troupe/core/bucket_layout.hpp"
#include "troupe/core/bucket_plan.hpp"
#include "troupe/core/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// What the user may set; counts are of buckets. Nothing set: chosen by the plan.
struct MemoryLimits {
  /// Slots of the ordinary class, and of each smaller one.
  std::optional<int> slots = {};
  /// Slots of each outsized class.
  std::optional<int> outsized_slots = {};
  /// Gradient slots of the ordinary gradient class, and of each smaller one.
  std::optional<int> gradient_slots = {};
  /// Gradient slots of each outsized gradient class.
  std::optional<int> outsized_gradient_slots = {};
  /// Buckets that may be held but not used since their gather; 0: no prefetch.
  std::optional<int> prefetch_depth = {};
  /// Of gradient slots.
  DType gradient_dtype = DType::f32;
  /// Of what is reduced; not set: the same. Another one needs room to be cast in.
  std::optional<DType> reduce_dtype = {};
  /// Every bucket has a slot of its own, and stays gathered.
  bool keep_gathered = false;
  /// So do the buckets that these units use.
  std::vector<UnitId> kept_units = {};
  /// Every trainable bucket has a gradient slot of its own.
  bool keep_gradients = false;
};

struct SlotClass {
  std::int64_t bytes_per_slot = 0;  ///< a multiple of `arena_alignment_bytes`
  SlotId first = 0;
  std::uint32_t count = 0;
  std::uint32_t need = 0;   ///< least count: what one unit needs at once, see above
  std::string option = {};  ///< the member of `MemoryLimits` that sets `count`; empty: nothing does
  std::vector<BucketId> buckets = {};
};

/// One kind of slots (parameters or gradients).
struct SlotPlan {
  static constexpr std::uint32_t no_class = ~std::uint32_t{0};

  std::vector<SlotClass> classes;         ///< largest first
  std::vector<std::uint32_t> class_of;    ///< per bucket; no_class: it never takes a slot
  std::vector<std::int64_t> slot_offset;  ///< per slot, bytes from the start of the arena
  std::int64_t bytes = 0;                 ///< sum over slots

  std::uint32_t slot_count() const { return static_cast<std::uint32_t>(slot_offset.size()); }
};

struct MemoryPlan {
  static constexpr std::int64_t arena_alignment_bytes = 256;

  SlotPlan parameters;
  SlotPlan gradients;
  /// Not set by the user: one less than the slots of the ordinary class; if every bucket has a slot
  /// of its own, twice the buckets of the unit that has most.
  int prefetch_depth = 0;
  std::int64_t arena_bytes = 0;  ///< parameters.bytes + gradients.bytes
  /// Beside the arena, where gradients are cast before they are reduced: one buffer, of the largest
  /// trainable bucket, since the reduces of a rank come one after the other. 0: they are not cast.
  std::int64_t staging_bytes = 0;
  std::vector<std::string> warnings;  ///< for instance: no slot to spare, so nothing overlaps
};

/// Layouts are per bucket, in bucket order. Errors: bad_configuration naming the option, the unit
/// that needs more, and the least value that would do; or the count that has no meaning since every
/// bucket has a slot of its own.
Result<MemoryPlan> plan_memory(const Model& model,
                               const BucketPlan& plan,
                               const std::vector<BucketLayout>& layouts,
                               const MemoryLimits& limits);

}  // namespace troupe
