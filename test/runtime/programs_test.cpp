/// Trainers that are not the plain one: each kind of program alone, in small. Equal to the
/// reference bit for bit on all ranks, and nothing left over; program_check.hpp says what that
/// includes.
#include "troupe/test/support/program_check.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

using Ops = MicroBatchProgram;
constexpr auto F = Op::forward;
constexpr auto B = Op::backward;
constexpr auto open_F = Op::begin_forward;
constexpr auto open_B = Op::begin_backward;
constexpr auto end = Op::end;

Model four_units() {
  return toy_model({{37, 5}, {64}, {1, 29, 3}, {50}});
}

std::vector<StepProgram> repeated(const Ops& micro_batch, std::size_t steps = 4) {
  return std::vector<StepProgram>(steps, StepProgram(2, micro_batch));
}

/// On every world size, with depths that gather ahead little and much, on both kinds of streams,
/// with as few slots as the program can do with and with one to spare.
void check(const Model& model, const std::vector<StepProgram>& steps) {
  ProgramRun run{.model = model, .options = {}, .ranks = 1, .steps = steps};
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const bool worker_stream : {false, true}) {
      for (const int spare : {0, 1}) {
        run.ranks = ranks;
        run.worker_stream = worker_stream;
        run.optimizer = worker_stream ? OptimizerKind::adamw : OptimizerKind::sgd;
        run.options = with_slots({.prefetch_depth = spare == 0 ? 1 : 3}, model, ranks, steps,
                                 [=] { return spare; });
        const std::string complaints = complaints_of(run);
        CHECK_MESSAGE(complaints.empty(), ranks, " ranks, ",
                      worker_stream ? "worker stream, " : "caller, ", spare, " to spare:\n",
                      complaints);
      }
    }
  }
}

TEST_CASE("a trainer that changes its order between steps") {
  const Ops plain = plain_micro_batch(4);
  const Ops other{{F, 2}, {F, 0}, {F, 3}, {F, 1}, {B, 1}, {B, 3}, {B, 0}, {B, 2}};
  const Ops third{{F, 3}, {F, 2}, {F, 1}, {F, 0}, {B, 0}, {B, 1}, {B, 2}, {B, 3}};
  check(four_units(), {{plain}, {other}, {plain, other}, {third, third}, {plain}});
}

TEST_CASE("a unit used twice, forward and backward") {
  check(four_units(),
        repeated({{F, 0}, {F, 1}, {F, 1}, {F, 2}, {F, 3}, {B, 3}, {B, 2}, {B, 1}, {B, 1}, {B, 0}}));
  check(four_units(),
        repeated({{F, 1}, {F, 0}, {F, 1}, {F, 2}, {F, 3}, {B, 3}, {B, 2}, {B, 1}, {B, 0}, {B, 1}}));
}

TEST_CASE("a unit whose backwards are more, or fewer, than its forwards") {
  check(four_units(),
        repeated({{F, 0}, {F, 1}, {F, 2}, {F, 3}, {B, 3}, {B, 2}, {B, 1}, {B, 1}, {B, 0}}));
  check(four_units(),
        repeated({{F, 0}, {F, 1}, {F, 1}, {F, 1}, {F, 2}, {F, 3}, {B, 3}, {B, 2}, {B, 1}, {B, 0}}));
}

TEST_CASE("all ranks skip a unit, in forward and backward or in backward only") {
  const Ops without{{F, 0}, {F, 2}, {F, 3}, {B, 3}, {B, 2}, {B, 0}};
  const Ops forward_only{{F, 0}, {F, 1}, {F, 2}, {F, 3}, {B, 3}, {B, 2}, {B, 0}};
  const Ops plain = plain_micro_batch(4);
  check(four_units(), {{plain}, {without}, {forward_only, plain}, {plain, without}, {plain}});
  check(four_units(), {{without, without}, {forward_only}, {forward_only, without}});
}

TEST_CASE("a micro-batch without a use, and one without a backward") {
  const Ops forward{{F, 0}, {F, 1}, {F, 2}, {F, 3}};
  check(four_units(), {{{}, plain_micro_batch(4)}, {forward}, {plain_micro_batch(4), {}}, {{}}});
}

TEST_CASE("units nest") {
  check(four_units(), repeated({{open_F, 0},
                                {open_F, 1},
                                {F, 2},
                                {end},
                                {end},
                                {F, 3},
                                {B, 3},
                                {open_B, 1},
                                {open_B, 0},
                                {B, 2},
                                {end},
                                {end}}));
  check(four_units(), repeated({{open_F, 0},
                                {F, 0},
                                {F, 1},
                                {end},
                                {F, 2},
                                {F, 3},
                                {B, 3},
                                {B, 2},
                                {B, 1},
                                {open_B, 0},
                                {B, 0},
                                {end}}));
}

TEST_CASE("an eval pass in the middle of a micro-batch, and between steps and micro-batches") {
  const Ops inside{{F, 0},           {F, 1},         {Op::begin_eval}, {F, 3},         {F, 0},
                   {F, 0},           {Op::end_eval}, {F, 2},           {F, 3},         {B, 3},
                   {Op::begin_eval}, {F, 1},         {F, 2},           {Op::end_eval}, {B, 2},
                   {B, 1},           {B, 0}};
  const Ops within_use{{open_F, 0},    {Op::begin_eval}, {open_F, 1}, {F, 2}, {end},
                       {Op::end_eval}, {F, 1},           {end},       {B, 1}, {B, 0}};
  const Ops between{{Op::outside}, {Op::begin_eval}, {F, 0},           {F, 1}, {F, 2},
                    {F, 3},        {Op::end_eval},   {Op::begin_eval}, {F, 2}, {Op::end_eval}};
  const Ops plain = plain_micro_batch(4);
  check(four_units(), {{plain},
                       {inside},
                       {between, plain},
                       {plain, between, inside},
                       {within_use},
                       {within_use, between}});
}

TEST_CASE("the forward is recomputed directly before its backward, or within it") {
  check(four_units(), repeated({{F, 0},
                                {F, 1},
                                {F, 2},
                                {F, 3},
                                {B, 3},
                                {F, 2},
                                {B, 2},
                                {F, 1},
                                {B, 1},
                                {F, 0},
                                {B, 0}}));
  check(four_units(), repeated({{F, 0},
                                {F, 1},
                                {F, 2},
                                {F, 3},
                                {open_B, 3},
                                {F, 3},
                                {end},
                                {open_B, 2},
                                {F, 2},
                                {end},
                                {open_B, 1},
                                {F, 1},
                                {F, 1},
                                {end},
                                {open_B, 0},
                                {F, 0},
                                {end}}));
}

TEST_CASE("parameters that a backward leaves without a gradient count as zero") {
  const auto untouched = [](std::uint32_t parameters, std::uint32_t on_ranks) {
    return Ops{{F, 0},
               {F, 1},
               {F, 2},
               {F, 3},
               {B, 3},
               {B, 2, parameters, on_ranks},
               {B, 1, parameters, on_ranks},
               {B, 0, parameters, on_ranks}};
  };
  const Ops plain = plain_micro_batch(4);
  // A full micro-batch first: what is left in the gradient slots is not zero.
  check(four_units(),
        {{plain, untouched(2, ~0U)}, {untouched(5, ~0U), plain}, {untouched(7, ~0U)}});
  check(four_units(), {{plain, untouched(3, 1)}, {untouched(5, 2), untouched(1, 5)}});
  // One of two backwards contributes.
  check(four_units(),
        repeated({{F, 0}, {F, 2}, {F, 2}, {F, 3}, {B, 3}, {B, 2, 3}, {B, 2, 6}, {B, 0}}));
}

TEST_CASE("several buckets per unit: bf16 and fp32, frozen parameters between trainable ones") {
  Model model;
  for (std::size_t u = 0; u < 4; ++u) {
    const UnitId unit = model.add_unit("u" + std::to_string(u));
    model.add_parameter(unit, {.name = "a", .shape = {33}, .dtype = DType::bf16});
    model.add_parameter(unit, {.name = "b", .shape = {20}});
    model.add_parameter(unit, {.name = "c", .shape = {9}, .trainable = false});
    model.add_parameter(unit, {.name = "d", .shape = {5}, .dtype = DType::bf16});
    model.add_parameter(unit, {.name = "e", .shape = {17}});
    model.add_parameter(unit,
                        {.name = "f", .shape = {3}, .dtype = DType::bf16, .trainable = u % 2 == 0});
  }
  check(model, repeated(plain_micro_batch(4)));
  check(
      model,
      repeated(
          {{F, 0}, {open_F, 1}, {F, 2}, {end}, {F, 3}, {B, 3}, {F, 2}, {B, 2, 9}, {B, 1}, {B, 0}}));
}

TEST_CASE("a unit that is frozen as a whole, and a model that is") {
  for (const bool all : {false, true}) {
    Model model;
    for (std::size_t u = 0; u < 3; ++u) {
      model.add_parameter(model.add_unit("u" + std::to_string(u)),
                          {.name = "p", .shape = {40}, .trainable = !all && u != 1});
    }
    check(model, repeated(plain_micro_batch(3)));
    check(model, repeated({{F, 0}, {F, 1}, {F, 2}, {B, 2}, {B, 0}}));  // no backward of unit 1
  }
}

TEST_CASE("tied parameters are reduced once, with what both units contribute") {
  Model model = toy_model({{48}, {31, 6}, {20}, {25}});
  model.tie(3, "out", 0, "p0");
  model.tie(2, "shared", 1, "p1");
  check(model, repeated(plain_micro_batch(4)));
  check(model,
        repeated({{F, 3}, {F, 1}, {F, 0}, {F, 2}, {F, 3}, {B, 3}, {B, 3}, {B, 2}, {B, 0}, {B, 1}}));
  check(model, repeated({{open_F, 0}, {F, 3}, {end}, {F, 2}, {B, 2}, {open_B, 0}, {B, 3}, {end}}));
}

TEST_CASE("a root unit is open around all others") {
  Model model = toy_model({{37}, {64}, {29}});
  model.add_parameter({.name = "scale", .shape = {11}});
  model.add_parameter({.name = "shift", .shape = {60}});
  const std::size_t root = model.root();
  const Ops around{{open_F, root}, {F, 0}, {F, 1}, {F, 2}, {end},
                   {open_B, root}, {B, 2}, {B, 1}, {B, 0}, {end}};
  const Ops throughout{{open_F, root}, {F, 0}, {F, 1}, {F, 2}, {open_B, root}, {B, 2},
                       {F, 1},         {B, 1}, {B, 0}, {end},  {end}};
  check(model, repeated(around));
  check(model, {{around}, {throughout}, {throughout, around}});
}

TEST_CASE("composite units are open around their parts") {
  Model model;
  const UnitId outer = model.add_unit("outer");
  const UnitId middle = model.add_unit("middle", outer);
  const UnitId inner = model.add_unit("inner", middle);
  const UnitId last = model.add_unit("last", outer);
  for (const UnitId unit : {outer, middle, inner, last}) {
    model.add_parameter(unit, {.name = "p", .shape = {30 + 5 * static_cast<int>(unit)}});
  }
  check(model, repeated({{open_F, outer},
                         {open_F, middle},
                         {F, inner},
                         {end},
                         {F, last},
                         {end},
                         {open_B, outer},
                         {B, last},
                         {open_B, middle},
                         {B, inner},
                         {end},
                         {end}}));
}

}  // namespace
}  // namespace troupe::test
