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

}  // namespace

Result<void> validate(const Options& options) {
  const auto strategy = static_cast<std::size_t>(options.strategy);
  if (strategy >= strategies.size()) {
    return refuse("strategy", std::to_string(strategy), "Strategy::full_shard");
  }
  if (options.strategy != Strategy::full_shard) {
    return refuse("strategy", std::string("Strategy::") + row_of(options.strategy).name,
                  "Strategy::full_shard, the only one that this version runs");
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
  if (options.reduce_dtype != DType::f32 && options.reduce_dtype != DType::bf16) {
    return refuse("reduce_dtype", std::to_string(static_cast<int>(options.reduce_dtype)),
                  "DType::f32 or DType::bf16");
  }
  if (options.gradient_divisor &&
      !(std::isfinite(*options.gradient_divisor) && *options.gradient_divisor > 0)) {
    return refuse("gradient_divisor", std::to_string(*options.gradient_divisor),
                  "a finite number above 0, or nothing (average)");
  }
  return {};
}

}  // namespace troupe
