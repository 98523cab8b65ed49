/// How a runtime shards and prefetches. The same on every rank: construction compares.
#pragma once

#include "troupe/core/dtype.hpp"
#include "troupe/core/error.hpp"
#include "troupe/core/memory_plan.hpp"
#include "troupe/core/mesh.hpp"
#include "troupe/core/strategy.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// What becomes of a trainable parameter that got no gradient in a whole step.
enum class UnusedParameters : std::uint8_t {
  zeros,  ///< its gradient is zero
  error,  ///< `finish_gradients` throws on all ranks and names it; the step is given up
};

struct Options {
  Strategy strategy = Strategy::full_shard;
  /// How the ranks of the world are divided; all in one copy if nothing is set. Several copies
  /// (HSDP) under every strategy but owner_broadcast, expert groups under all.
  DeviceMesh mesh{};
  /// false: every collective is waited for where it is launched, and nothing is gathered ahead. The
  /// parameters are the same, bit for bit.
  bool overlap = true;

  // full_shard: what becomes of a unit's parameters between forward and backward.

  /// false: they stay gathered until the step ends, each bucket in a slot of its own.
  bool reshard_after_forward = true;
  /// Names of units that do, while the others do not.
  std::vector<std::string> keep_gathered{};
  /// Each rank keeps a part of what was gathered first since the last update, such that so many
  /// neighbours together have all of it; later gathers stay among them. 0: off. Buckets of expert
  /// groups are gathered as ever.
  int regather_group_size = 0;

  // Every strategy.

  /// true: full gradient buffers are used in turn (ZeRO-2). false: each trainable bucket keeps one
  /// of its own (ZeRO-1), in which micro-batches may accumulate without communication
  /// (`MicroBatchOptions::reduce`).
  bool free_full_gradients = true;

  // Memory and overlap. Not set: chosen by the memory plan, see core/memory_plan.hpp. Slots for
  // gathered buckets are counted under full_shard only, those for gradients if they are freed.

  /// Slots for gathered buckets of ordinary size (and as many for each smaller size class).
  std::optional<int> slots{};
  /// Slots for each class of outsized buckets, such as an embedding.
  std::optional<int> outsized_slots{};
  /// Slots for gradients that are being filled or reduced, of ordinary size.
  std::optional<int> gradient_slots{};
  std::optional<int> outsized_gradient_slots{};
  /// Buckets gathered ahead and not used yet; 0 gathers only on demand.
  std::optional<int> prefetch_depth{};
  /// Largest unsharded bucket in bytes. 0: full_shard has one for each unit, dtype and so on,
  /// sharded_optimizer fuses to a size of its own choice, owner_broadcast does not fuse
  /// (core/bucket_plan.hpp).
  std::int64_t bucket_bytes = 0;
  /// Every parameter begins at a multiple of this many elements, and so does every shard.
  std::int64_t alignment_numel = 16;

  // Arithmetic.

  /// Dtype of gradients on the wire. Sums are taken in fp32 in any case.
  DType reduce_dtype = DType::f32;
  /// Of full gradient buffers: what backwards write, and what micro-batches without a reduce
  /// accumulate in. Not set: `reduce_dtype`. Where the two differ, gradients are cast in front of
  /// each reduce, for which there is one more buffer, of the largest bucket.
  std::optional<DType> gradient_dtype{};
  /// In which main gradients are kept from reduce to reduce; bf16 rounds them at each, in half the
  /// memory. Updates see them in fp32, as main weights and optimizer states.
  DType main_gradient_dtype = DType::f32;
  /// In which main weights of bf16 parameters are kept; bf16 rounds every update. Those of fp32
  /// parameters are fp32.
  DType main_weight_dtype = DType::f32;
  /// The summed gradient is divided by this, once. Not set: the number of ranks, which averages.
  std::optional<float> gradient_divisor{};
  /// The same for parameters of expert groups. Not set: as the others, since the tokens of all
  /// ranks come to an expert.
  std::optional<float> expert_gradient_divisor{};
  /// With several copies of the model: false sums over them behind every reduce, hidden behind the
  /// backward; true sums the main gradients once, when the step ends: less to send with several
  /// micro-batches, but not hidden.
  bool sum_replicas_at_step_end = false;

  // Checks.

  UnusedParameters unused_parameters = UnusedParameters::zeros;
  /// Looks at every gradient at the end of the backward that contributed to it, before it is
  /// reduced: one that is infinite or not a number ends the step with an error that names parameter
  /// and rank. Waits for the computation of each backward, so it costs overlap.
  bool check_gradients = false;
};

/// Checks what can be checked without a model. The text names the field and what would do.
Result<void> validate(const Options& options);

}  // namespace troupe
