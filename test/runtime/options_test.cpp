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

TEST_CASE("there are three strategies") {
  for (const StrategyRow& row : strategies) {
    CHECK(refusal([&](Options& o) { o.strategy = row.strategy; }).empty());
  }
  CHECK(refusal([](Options& o) { o.strategy = static_cast<Strategy>(77); }) ==
        "Options::strategy is 77; expected Strategy::owner_broadcast, sharded_optimizer or "
        "full_shard");
}

TEST_CASE("what becomes of gathered parameters is an option of full_shard") {
  for (const Strategy strategy : {Strategy::owner_broadcast, Strategy::sharded_optimizer}) {
    const auto under = [&](const std::function<void(Options&)>& change) {
      return refusal([&](Options& o) {
        o.strategy = strategy;
        change(o);
      });
    };
    const std::string name = std::string(" under Strategy::") + row_of(strategy).name;
    CHECK(under([](Options& o) { o.reshard_after_forward = false; }) ==
          "Options::reshard_after_forward is false; expected true" + name +
              ": parameters stay anyway");
    CHECK(under([](Options& o) { o.keep_gathered = {"u"}; }) ==
          "Options::keep_gathered is not empty; expected nothing" + name +
              ": parameters stay anyway");
    CHECK(under([](Options& o) { o.regather_group_size = 2; }) ==
          "Options::regather_group_size is 2; expected 0" + name + ": nothing is gathered twice");
    CHECK(under([](Options& o) { o.free_full_gradients = false; }).empty());
  }
  CHECK(refusal([](Options& o) { o.reshard_after_forward = false; }).empty());
  CHECK(refusal([](Options& o) { o.keep_gathered = {"u"}; }).empty());
}

TEST_CASE("parameters are gathered again among 2 and more ranks, or all stay") {
  for (const int size : {1, -1, -2}) {
    CHECK(refusal([&](Options& o) { o.regather_group_size = size; }) ==
          "Options::regather_group_size is " + std::to_string(size) +
              "; expected 0 (off) or 2 and more; reshard_after_forward = false keeps all on each "
              "rank");
  }
  CHECK(refusal([](Options& o) {
          o.reshard_after_forward = false;
          o.regather_group_size = 2;
        }) ==
        "Options::regather_group_size is 2; expected 0 with reshard_after_forward false: nothing "
        "is gathered twice");
  CHECK(refusal([](Options& o) { o.regather_group_size = 2; }).empty());
}

TEST_CASE("without overlap nothing is gathered ahead") {
  CHECK(refusal([](Options& o) {
          o.overlap = false;
          o.prefetch_depth = 1;
        }) == "Options::prefetch_depth is 1; expected 0 or nothing with overlap false");
  CHECK(refusal([](Options& o) {
          o.overlap = false;
          o.prefetch_depth = 0;
        }).empty());
  CHECK(refusal([](Options& o) { o.overlap = false; }).empty());
}

TEST_CASE("a parameter has one owner: no copies of the model under owner_broadcast") {
  CHECK(refusal([](Options& o) {
          o.strategy = Strategy::owner_broadcast;
          o.mesh.replicate = 2;
        }) ==
        "Options::mesh.replicate is 2; expected 1 under Strategy::owner_broadcast: a parameter has "
        "one owner, not one in each copy");
  for (const Strategy strategy : {Strategy::sharded_optimizer, Strategy::full_shard}) {
    CHECK(refusal([&](Options& o) {
            o.strategy = strategy;
            o.mesh.replicate = 2;
          }).empty());
  }
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

TEST_CASE("options that would say nothing beside others are refused") {
  CHECK(refusal([](Options& o) {
          o.reshard_after_forward = false;
          o.keep_gathered = {"u"};
        }) ==
        "Options::keep_gathered is not empty; expected nothing with reshard_after_forward false: "
        "all parameters stay");
  CHECK(refusal([](Options& o) { o.sum_replicas_at_step_end = true; }) ==
        "Options::sum_replicas_at_step_end is true; expected false with mesh.replicate 1: there is "
        "one copy");
  CHECK(refusal([](Options& o) {
          o.mesh.replicate = 2;
          o.sum_replicas_at_step_end = true;
        }).empty());
}

TEST_CASE("gradients and main weights are in fp32 or bf16") {
  const auto check = [](const char* field, const std::function<void(Options&, DType)>& set) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CHECK(refusal([&](Options& o) { set(o, dtype); }).empty());
    }
    CHECK(refusal([&](Options& o) { set(o, static_cast<DType>(9)); }) ==
          std::string("Options::") + field + " is 9; expected DType::f32 or DType::bf16");
  };
  check("reduce_dtype", [](Options& o, DType dtype) { o.reduce_dtype = dtype; });
  check("gradient_dtype", [](Options& o, DType dtype) { o.gradient_dtype = dtype; });
  check("main_gradient_dtype", [](Options& o, DType dtype) { o.main_gradient_dtype = dtype; });
  check("main_weight_dtype", [](Options& o, DType dtype) { o.main_weight_dtype = dtype; });
}

TEST_CASE("divisors are finite numbers above 0") {
  const float infinity = std::numeric_limits<float>::infinity();
  struct Row {
    const char* field;
    std::optional<float> Options::* member;
  };
  for (const Row& row : {Row{"gradient_divisor", &Options::gradient_divisor},
                         Row{"expert_gradient_divisor", &Options::expert_gradient_divisor}}) {
    for (const float value : {0.0F, -1.0F, infinity, -infinity, std::nanf("")}) {
      CHECK(refusal([&](Options& o) { o.*row.member = value; }) ==
            std::string("Options::") + row.field + " is " + std::to_string(value) +
                "; expected a finite number above 0, or nothing (average)");
    }
    for (const float value : {1.0F, 0.5F, std::numeric_limits<float>::denorm_min(),
                              std::numeric_limits<float>::max()}) {
      CHECK(refusal([&](Options& o) { o.*row.member = value; }).empty());
    }
  }
}

}  // namespace
}  // namespace troupe::test
