/// How a runtime shards and prefetches. The same on every rank: construction compares.
#pragma once

#include "troupe/core/dtype.hpp"
#include "troupe/core/error.hpp"
#include "troupe/core/memory_plan.hpp"
#include "troupe/core/strategy.hpp"

#include <cstdint>
#include <optional>

namespace troupe {

struct Options {
  Strategy strategy = Strategy::full_shard;

  // Memory and overlap. Not set: chosen by the memory plan, see core/memory_plan.hpp.

  /// Slots for gathered buckets of ordinary size (and as many for each smaller size class).
  std::optional<int> slots{};
  /// Slots for each class of outsized buckets, such as an embedding.
  std::optional<int> outsized_slots{};
  /// Slots for gradients that are being filled or reduced, of ordinary size.
  std::optional<int> gradient_slots{};
  std::optional<int> outsized_gradient_slots{};
  /// Buckets gathered ahead and not used yet; 0 gathers only on demand.
  std::optional<int> prefetch_depth{};
  /// Largest unsharded bucket in bytes; 0: one bucket for each unit, dtype and so on.
  std::int64_t bucket_bytes = 0;
  /// Every parameter begins at a multiple of this many elements, and so does every shard.
  std::int64_t alignment_numel = 16;

  // Arithmetic.

  /// Dtype of gradients on the wire and in gradient slots. Sums are taken in fp32 in any case, main
  /// weights and main gradients are fp32.
  DType reduce_dtype = DType::f32;
  /// The summed gradient is divided by this, once. Not set: the number of ranks, which averages.
  std::optional<float> gradient_divisor{};
};

/// Checks what can be checked without a model. The text names the field and what would do.
Result<void> validate(const Options& options);

}  // namespace troupe
