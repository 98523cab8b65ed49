// Step times in virtual time against the closed forms of uniform layers, and against the bound of
// each phase. c, b, g, r: forward, backward, gather, reduce of a layer.
#include "timed_world.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace troupe::test {
namespace {

constexpr std::size_t layers = 40;
/// Layers between which a rate is taken: in the middle, a multiple of every number of slots.
constexpr std::size_t first = 8;
constexpr std::size_t window = 24;

Duration ms(int count) {
  return Milliseconds{count};
}

Duration rate_window(const std::vector<TimePoint>& ends) {
  return ends[first + window] - ends[first];
}

struct Costs {
  int compute;
  int communication;
};
constexpr Costs costs[] = {{10, 4}, {10, 10}, {4, 10}, {12, 6}, {7, 9}};

TEST_CASE(
    "a forward layer takes max(c, g, (c+g)/min(d+1, M)), or (c+g)/M when the host runs ahead") {
  int cells = 0;
  for (const bool ahead : {false, true}) {
    for (int depth = 0; depth <= 4; ++depth) {
      for (int slots = 1; slots <= 4; ++slots) {
        for (const Costs& cost : costs) {
          const int c = cost.compute;
          const int g = cost.communication;
          const TimedLayers uniform{
              .layers = layers, .forward = ms(c), .gather = ms(g), .host_runs_ahead = ahead};
          const TimedRun run = run_timed(uniform, timed_options(slots, depth, 2), 1);
          const int turns = ahead ? slots : std::min(depth + 1, slots);
          CAPTURE(ahead);
          CAPTURE(depth);
          CAPTURE(slots);
          CAPTURE(c);
          CAPTURE(g);
          // In units of 1/turns, so that nothing is rounded.
          const Duration right =
              ms(static_cast<int>(window) * std::max({c * turns, g * turns, c + g})) / turns;
          CHECK(rate_window(run.steps[0].forwards) == right);
          ++cells;
        }
      }
    }
  }
  CHECK(cells == 200);
}

TEST_CASE("a backward layer takes max(b, g+r) on one link and max(b, g, r) on two") {
  struct Cell {
    int b, g, r;
  };
  constexpr Cell cells[] = {{20, 5, 5}, {20, 10, 10}, {10, 8, 8},
                            {12, 6, 6}, {12, 9, 3},   {5, 4, 9}};
  for (const bool one_link : {true, false}) {
    for (const int slots : {2, 3}) {
      for (const Cell& cell : cells) {
        const TimedLayers uniform{.layers = layers,
                                  .forward = ms(cell.b / 2),
                                  .backward = ms(cell.b),
                                  .gather = ms(cell.g),
                                  .reduce = ms(cell.r),
                                  .one_link = one_link};
        const TimedRun run = run_timed(uniform, timed_options(slots, slots - 1, 2), 1);
        CAPTURE(one_link);
        CAPTURE(slots);
        CAPTURE(cell.b);
        CAPTURE(cell.g);
        CAPTURE(cell.r);
        const int right =
            one_link ? std::max(cell.b, cell.g + cell.r) : std::max({cell.b, cell.g, cell.r});
        CHECK(rate_window(run.steps[0].backwards) == ms(right) * window);
      }
    }
  }
}

TEST_CASE("a step stays within 5 % of max(Σc, Σg) + max(Σb, Σ(g+r)) + the last reduce") {
  double worst = 0.0;
  for (const std::size_t count : {std::size_t{24}, std::size_t{32}, std::size_t{48}}) {
    for (const int c : {10}) {
      for (const int g : {3, 5, 7, 8, 10, 12, 15, 20}) {
        for (const int times : {1, 2}) {  // r: as the gather, or in fp32 twice as much
          const int r = g * times;
          const int b = 2 * c;
          const TimedLayers uniform{.layers = count,
                                    .forward = ms(c),
                                    .backward = ms(b),
                                    .gather = ms(g),
                                    .reduce = ms(r),
                                    .one_link = true};
          const TimedRun run = run_timed(uniform, timed_options(3, 2, 2), 3);
          const auto n = static_cast<int>(count);
          const Duration bound = ms(std::max(n * c, n * g) + std::max(n * b, n * (g + r)) + r);
          const double ratio = static_cast<double>(run.steps[2].total().count()) /
                               static_cast<double>(bound.count());
          CAPTURE(count);
          CAPTURE(g);
          CAPTURE(r);
          CHECK(ratio <= 1.05);
          worst = std::max(worst, ratio);
        }
      }
    }
  }
  MESSAGE("worst ratio ", worst);
}

TEST_CASE("exposed communication is at most 5 % where computation is 1.5 times communication") {
  // Forward and backward compute 1.5 times what gathers and reduces take; 24 layers.
  const TimedLayers uniform{.layers = 24,
                            .forward = ms(15),
                            .backward = ms(30),
                            .gather = ms(10),
                            .reduce = ms(10),
                            .one_link = true};
  const TimedRun run = run_timed(uniform, timed_options(3, 2, 2), 3);
  const Duration compute = ms(24 * 45);
  const Duration total = run.steps[2].total();
  CHECK(static_cast<double>((total - compute).count()) <=
        0.05 * static_cast<double>(total.count()));
  REQUIRE(run.report.time_last_step.has_value());
  CHECK(run.report.time_last_step->compute == compute);
  CHECK(run.report.time_last_step->exposed == total - compute);
}

}  // namespace
}  // namespace troupe::test
