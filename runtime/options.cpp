#include "troupe/runtime/options.hpp"

#include <cmath>
#include <string>

namespace troupe {

namespace {

Failure refuse(const char* field, const std::string& value, const std::string& expected) {
  return {.code = ErrorCode::bad_configuration,
          .text = std::string("Options::") + field + " is " + value + "; expected " + expected};
}

Result<void> check_count(const char* field, const std::optional<int>& value, int least) {
  if (value && *value < least) {
    return refuse(field, std::to_string(*value),
                  least == 0 ? "0 or more" : std::to_string(least) + " or more, or nothing");
  }
  return {};
}

/// What one option makes meaningless or impossible of another.
Result<void> check_combinations(const Options& options) {
  const bool full_shard = options.strategy == Strategy::full_shard;
  const std::string under = std::string(" under Strategy::") + row_of(options.strategy).name;
  if (!full_shard && !options.reshard_after_forward) {
    return refuse("reshard_after_forward", "false", "true" + under + ": parameters stay anyway");
  }
  if (!full_shard && !options.keep_gathered.empty()) {
    return refuse("keep_gathered", "not empty", "nothing" + under + ": parameters stay anyway");
  }
  if (!full_shard && options.regather_group_size != 0) {
    return refuse("regather_group_size", std::to_string(options.regather_group_size),
                  "0" + under + ": nothing is gathered twice");
  }
  if (!options.reshard_after_forward && options.regather_group_size != 0) {
    return refuse("regather_group_size", std::to_string(options.regather_group_size),
                  "0 with reshard_after_forward false: nothing is gathered twice");
  }
  if (options.regather_group_size < 0 || options.regather_group_size == 1) {
    return refuse("regather_group_size", std::to_string(options.regather_group_size),
                  "0 (off) or 2 and more; reshard_after_forward = false keeps all on each rank");
  }
  if (!options.reshard_after_forward && !options.keep_gathered.empty()) {
    return refuse("keep_gathered", "not empty",
                  "nothing with reshard_after_forward false: all parameters stay");
  }
  if (options.sum_replicas_at_step_end && options.mesh.replicate == 1) {
    return refuse("sum_replicas_at_step_end", "true",
                  "false with mesh.replicate 1: there is one copy");
  }
  if (const int depth = options.prefetch_depth.value_or(0); !options.overlap && depth > 0) {
    return refuse("prefetch_depth", std::to_string(depth), "0 or nothing with overlap false");
  }
  if (options.strategy == Strategy::owner_broadcast && options.mesh.replicate > 1) {
    return refuse("mesh.replicate", std::to_string(options.mesh.replicate),
                  "1" + under + ": a parameter has one owner, not one in each copy");
  }
  return {};
}

}  // namespace

Result<void> validate(const Options& options) {
  const auto strategy = static_cast<std::size_t>(options.strategy);
  if (strategy >= strategies.size()) {
    return refuse("strategy", std::to_string(strategy),
                  "Strategy::owner_broadcast, sharded_optimizer or full_shard");
  }
  if (auto valid = check_combinations(options); !valid) {
    return valid;
  }
  struct Count {
    const char* field;
    const std::optional<int>& value;
    int least;
  };
  for (const Count& count :
       {Count{"slots", options.slots, 1}, Count{"outsized_slots", options.outsized_slots, 1},
        Count{"gradient_slots", options.gradient_slots, 1},
        Count{"outsized_gradient_slots", options.outsized_gradient_slots, 1},
        Count{"prefetch_depth", options.prefetch_depth, 0}}) {
    if (auto checked = check_count(count.field, count.value, count.least); !checked) {
      return checked;
    }
  }
  if (options.bucket_bytes < 0) {
    return refuse("bucket_bytes", std::to_string(options.bucket_bytes),
                  "0 (no limit) or a size in bytes");
  }
  constexpr std::int64_t alignment_max = 1 << 20;
  if (options.alignment_numel < 1 || options.alignment_numel > alignment_max) {
    return refuse("alignment_numel", std::to_string(options.alignment_numel),
                  "1 to " + std::to_string(alignment_max));
  }
  for (const auto& [field, dtype] :
       {std::pair("reduce_dtype", options.reduce_dtype),
        std::pair("gradient_dtype", options.gradient_dtype.value_or(DType::f32)),
        std::pair("main_gradient_dtype", options.main_gradient_dtype),
        std::pair("main_weight_dtype", options.main_weight_dtype)}) {
    if (dtype != DType::f32 && dtype != DType::bf16) {
      return refuse(field, std::to_string(static_cast<int>(dtype)), "DType::f32 or DType::bf16");
    }
  }
  if (options.unused_parameters != UnusedParameters::zeros &&
      options.unused_parameters != UnusedParameters::error) {
    return refuse("unused_parameters", std::to_string(static_cast<int>(options.unused_parameters)),
                  "UnusedParameters::zeros or error");
  }
  for (const auto& [field, divisor] :
       {std::pair("gradient_divisor", options.gradient_divisor),
        std::pair("expert_gradient_divisor", options.expert_gradient_divisor)}) {
    if (divisor && !(std::isfinite(*divisor) && *divisor > 0)) {
      return refuse(field, std::to_string(*divisor),
                    "a finite number above 0, or nothing (average)");
    }
  }
  return {};
}

}  // namespace troupe
