// What a step takes with each strategy in virtual time, where each of 24 equal layers has one
// bucket and one link carries gathers and reduces. c, b, g, r: forward, backward, gather, reduce of
// a layer.
#include "timed_world.hpp"

#include <doctest/doctest.h>

#include <string>

namespace troupe::test {
namespace {

constexpr int layers = 24;
constexpr int c = 15, b = 30, g = 10, r = 10;

Duration ms(int count) {
  return Milliseconds{count};
}

TEST_CASE("every strategy hides all but what nothing can hide, and none without overlap") {
  const TimedLayers uniform{.layers = layers,
                            .forward = ms(c),
                            .backward = ms(b),
                            .gather = ms(g),
                            .reduce = ms(r),
                            .one_link = true};
  struct Row {
    const char* name;
    Options options;
    Duration exposed;          ///< with overlap
    Duration exposed_without;  ///< without
    std::uint64_t gathers;     ///< of a step
  };
  // The first gather and the last reduce have no computation beside them. Without overlap each
  // collective is waited for: as many gathers as the strategy makes, and a reduce for each layer.
  const auto every = [](int gathers) { return ms(gathers * g + layers * r); };
  const Row rows[]{
      {"owner_broadcast",
       {.strategy = Strategy::owner_broadcast},
       ms(g + r),
       every(layers),
       layers},
      {"sharded_optimizer",
       {.strategy = Strategy::sharded_optimizer},
       ms(g + r),
       every(layers),
       layers},
      {"full_shard", {}, ms(g + r), every(2 * layers - 3), 2 * layers - 3},
      {"full_shard, kept", {.reshard_after_forward = false}, ms(g + r), every(layers), layers},
  };
  for (const Row& row : rows) {
    for (const bool overlap : {true, false}) {
      CAPTURE(std::string(row.name));
      CAPTURE(overlap);
      Options options = row.options;
      options.overlap = overlap;
      const TimedRun run = run_timed(uniform, options, 4);
      const Duration compute = ms(layers * (c + b));
      const Duration exposed = run.steps[3].total() - compute;
      CHECK(exposed == (overlap ? row.exposed : row.exposed_without));
      const auto unshard = static_cast<std::size_t>(row_of(options.strategy).unshard_by);
      const std::uint64_t orders = options.strategy == Strategy::owner_broadcast ? 1 : 0;
      CHECK(run.report.collectives_last_step[unshard] == row.gathers + orders);
    }
  }
}

}  // namespace
}  // namespace troupe::test
