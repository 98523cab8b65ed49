/// Every field of the options: what is refused, with which text, and what is just allowed.
#include "troupe/runtime/options.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace troupe::test {
namespace {

std::string refusal(const std::function<void(Options&)>& change) {
  Options options;
  change(options);
  const Result<void> valid = validate(options);
  if (!valid) {
    CHECK(valid.failure().code == ErrorCode::bad_configuration);
  }
  return valid ? "" : valid.failure().text;
}

TEST_CASE("the default options are valid") {
  CHECK(refusal([](Options&) {}).empty());
}

TEST_CASE("strategies that this version does not run are refused by name") {
  for (const Strategy strategy : {Strategy::owner_broadcast, Strategy::sharded_optimizer}) {
    CHECK(refusal([&](Options& o) { o.strategy = strategy; }) ==
          std::string("Options::strategy is Strategy::") + row_of(strategy).name +
              "; expected Strategy::full_shard, the only one that this version runs");
  }
  CHECK(refusal([](Options& o) { o.strategy = static_cast<Strategy>(77); }) ==
        "Options::strategy is 77; expected Strategy::full_shard");
}

TEST_CASE("counts of slots are 1 or more, the prefetch depth 0 or more") {
  struct Row {
    const char* field;
    std::optional<int> Options::* member;
    int least;
  };
  for (const Row& row :
       {Row{"slots", &Options::slots, 1}, Row{"outsized_slots", &Options::outsized_slots, 1},
        Row{"gradient_slots", &Options::gradient_slots, 1},
        Row{"outsized_gradient_slots", &Options::outsized_gradient_slots, 1},
        Row{"prefetch_depth", &Options::prefetch_depth, 0}}) {
    for (const int value : {row.least - 1, std::numeric_limits<int>::min()}) {
      CHECK(refusal([&](Options& o) { o.*row.member = value; }) ==
            std::string("Options::") + row.field + " is " + std::to_string(value) + "; expected " +
                (row.least == 0 ? "0 or more" : "1 or more, or nothing"));
    }
    for (const int value : {row.least, std::numeric_limits<int>::max()}) {
      CHECK(refusal([&](Options& o) { o.*row.member = value; }).empty());
    }
  }
}

TEST_CASE("a bucket's size is not negative; 0 means no limit") {
  CHECK(refusal([](Options& o) { o.bucket_bytes = -1; }) ==
        "Options::bucket_bytes is -1; expected 0 (no limit) or a size in bytes");
  CHECK(refusal([](Options& o) { o.bucket_bytes = 0; }).empty());
  CHECK(refusal([](Options& o) { o.bucket_bytes = 1; }).empty());
}

TEST_CASE("the alignment is 1 to 1048576 elements") {
  for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-16}, std::int64_t{1048577},
                                   std::numeric_limits<std::int64_t>::max()}) {
    CHECK(refusal([&](Options& o) { o.alignment_numel = value; }) ==
          "Options::alignment_numel is " + std::to_string(value) + "; expected 1 to 1048576");
  }
  for (const std::int64_t value : {1, 3, 1048576}) {
    CHECK(refusal([&](Options& o) { o.alignment_numel = value; }).empty());
  }
}

TEST_CASE("gradients are reduced in fp32 or bf16") {
  CHECK(refusal([](Options& o) { o.reduce_dtype = DType::bf16; }).empty());
  CHECK(refusal([](Options& o) { o.reduce_dtype = static_cast<DType>(9); }) ==
        "Options::reduce_dtype is 9; expected DType::f32 or DType::bf16");
}

TEST_CASE("the divisor is a finite number above 0") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {0.0F, -1.0F, infinity, -infinity, std::nanf("")}) {
    CHECK(refusal([&](Options& o) { o.gradient_divisor = value; }) ==
          "Options::gradient_divisor is " + std::to_string(value) +
              "; expected a finite number above 0, or nothing (average)");
  }
  for (const float value :
       {1.0F, 0.5F, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max()}) {
    CHECK(refusal([&](Options& o) { o.gradient_divisor = value; }).empty());
  }
}

}  // namespace
}  // namespace troupe::test
