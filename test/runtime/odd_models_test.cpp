/// Models and options at the edge, under every strategy: nothing in a parameter, one element for
/// seven ranks, nothing to train, one unit; weights that units share, wherever their elements lie.
#include "troupe/test/support/strategy_random.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

struct Variant {
  Options options;
  int ranks_divisor = 1;
};

std::vector<Variant> variants() {
  constexpr Strategy owner = Strategy::owner_broadcast;
  constexpr Strategy sliced = Strategy::sharded_optimizer;
  return {
      {{.strategy = owner, .prefetch_depth = 0}},
      {{.strategy = owner, .prefetch_depth = 100, .bucket_bytes = 1, .alignment_numel = 1}},
      {{.strategy = owner, .free_full_gradients = false, .bucket_bytes = 1 << 20}},
      {{.strategy = owner, .overlap = false, .reduce_dtype = DType::bf16}},
      {{.strategy = sliced, .prefetch_depth = 1, .bucket_bytes = 1, .alignment_numel = 1}},
      {{.strategy = sliced, .prefetch_depth = 100, .bucket_bytes = 1 << 20}},
      {{.strategy = sliced, .free_full_gradients = false, .alignment_numel = 4}},
      {{.strategy = sliced, .mesh = {.replicate = 2}, .sum_replicas_at_step_end = true}, 2},
      {{.bucket_bytes = 1, .alignment_numel = 1}},
      {{.reshard_after_forward = false, .prefetch_depth = 100}},
      {{.regather_group_size = 2, .alignment_numel = 1}, 2},
      {{.mesh = {.replicate = 2}, .alignment_numel = 3}, 2},
      {{.overlap = false}},
  };
}

void check(const Model& model, const std::vector<StepProgram>& steps) {
  for (const Variant& variant : variants()) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      if (ranks % variant.ranks_divisor != 0) {
        continue;
      }
      ProgramRun run{.model = model, .options = variant.options, .ranks = ranks, .steps = steps};
      run.worker_stream = ranks > 2;
      run.optimizer = OptimizerKind::adamw;
      const std::string complaints = complaints_of(run);
      CHECK_MESSAGE(complaints.empty(), row_of(run.options.strategy).name, ", depth ",
                    run.options.prefetch_depth.value_or(-1), ", bucket_bytes ",
                    run.options.bucket_bytes, ", ", ranks, " ranks:\n", complaints);
    }
  }
}

void check_plain(const Model& model) {
  check(model, std::vector<StepProgram>(3, plain_step(model.units().size(), 2)));
}

TEST_CASE("one unit: of one element, of none, of no parameter, of many") {
  for (const std::vector<std::int64_t>& parameters :
       std::vector<std::vector<std::int64_t>>{{1}, {0}, {}, {0, 1, 0}, {1000, 1}}) {
    check_plain(toy_model({parameters}));
  }
  check_plain(toy_model({{1}}, DType::bf16));
}

TEST_CASE("a model without any parameter, and units without some") {
  check_plain(toy_model({{}, {}}));
  check_plain(toy_model({{}, {3}, {}, {0}, {1}, {}}));
}

TEST_CASE("nothing to train, and one element to train among what is frozen") {
  for (const bool one : {false, true}) {
    Model model;
    for (std::size_t u = 0; u < 4; ++u) {
      const UnitId unit = model.add_unit("u" + std::to_string(u));
      model.add_parameter(unit, {.name = "a", .shape = {40}, .trainable = false});
      model.add_parameter(unit,
                          {.name = "b", .shape = {9}, .dtype = DType::bf16, .trainable = false});
      if (one && u == 2) {
        model.add_parameter(unit, {.name = "c", .shape = {1}});
      }
    }
    check_plain(model);
    check(model, {{{}}, plain_step(4, 1), {{{Op::forward, 3}, {Op::backward, 3}}}});
  }
}

TEST_CASE("shared weights whose elements lie on one rank only, on none, or on all unevenly") {
  for (const std::int64_t numel : {0, 1, 2, 5, 33, 100}) {
    Model model = toy_model({{7}, {numel, 31}, {20}, {3}});
    model.tie(3, "tied", 1, "p0");
    model.tie(0, "also", 1, "p0");
    model.tie(3, "other", 2, "p0");
    check_plain(model);
    // The last contribution comes from another unit each time; one of three units leaves it out.
    using enum Op::Kind;
    check(model, {{{{forward, 3},
                    {forward, 1},
                    {forward, 2},
                    {forward, 0},
                    {backward, 0},
                    {backward, 2},
                    {backward, 3},
                    {backward, 1}}},
                  {{{forward, 0},
                    {forward, 1},
                    {forward, 2},
                    {forward, 3},
                    {backward, 3, 2},
                    {backward, 1, 1},
                    {backward, 2},
                    {backward, 0}}},
                  {{{forward, 3}, {forward, 2}, {backward, 2}, {backward, 3}}}});
  }
}

TEST_CASE("shared weights that some ranks use in one unit, others in another") {
  for (const std::int64_t numel : {1, 5, 100}) {
    Model model = toy_model({{7}, {numel, 31}, {20}, {3}});
    model.tie(3, "tied", 1, "p0");
    std::vector<StepProgram> steps(4, plain_step(4, 2));
    std::uint32_t on = 1;
    for (StepProgram& step : steps) {
      for (MicroBatchProgram& program : step) {
        for (Op& op : program) {
          op.absent_on = op.unit == 1 ? on : op.unit == 3 ? ~on : 0;
        }
        on = on * 2 + 1;
      }
    }
    check(model, steps);
  }
}

}  // namespace
}  // namespace troupe::test
