#include "benchmarks.hpp"
#include "pass_trainer.hpp"

#include <string>
#include <utility>

namespace troupe::bench {

namespace {

struct Forwards {
  std::vector<Nanoseconds> pairs;  ///< begin and end of each use, of all ranks
  Nanoseconds total = 0;           ///< of rank 0's forwards
};

/// Slots and depth are the runtime's defaults, written out; polling, too, is as it would choose
/// with more threads than cores.
Forwards run_forwards(int layers) {
  constexpr int ranks = 2;
  constexpr int forwards = 5;
  PassSetup setup;
  setup.ranks = ranks;
  setup.units = layers;
  std::vector<Forwards> of_rank(ranks);
  with_troupe(setup, [&](PassTrainer& trainer, int rank) {
    Forwards& own = of_rank[static_cast<std::size_t>(rank)];
    const Nanoseconds begun = now_ns();
    for (int forward = 0; forward < forwards; ++forward) {
      trainer.begin_pass();
      for (UnitId unit = 0; unit < static_cast<UnitId>(layers); ++unit) {
        const Nanoseconds pair_begun = now_ns();
        trainer.begin(unit);
        trainer.end();
        own.pairs.push_back(now_ns() - pair_begun);
      }
      trainer.end_pass();
    }
    own.total = now_ns() - begun;
  });
  Forwards all = std::move(of_rank[0]);
  all.pairs.insert(all.pairs.end(), of_rank[1].pairs.begin(), of_rank[1].pairs.end());
  return all;
}

struct Size {
  int layers = 0;
  std::vector<double> means{};
  std::vector<double> medians{};
  std::vector<double> tails{};
  std::vector<double> totals{};
  std::vector<double> ratios{};  ///< of the totals to the smallest size's, in the same repetition
};

}  // namespace

Table thousand_layers(const Effort& effort) {
  std::vector<Size> sizes(2);
  sizes[0].layers = effort.quick ? 10 : 500;
  sizes[1].layers = 2 * sizes[0].layers;
  for (int repetition = 0; repetition < effort.repetitions; ++repetition) {
    for (Size& size : sizes) {
      const Forwards forwards = run_forwards(size.layers);
      size.means.push_back(mean(forwards.pairs) * 1e-3);
      size.medians.push_back(percentile(forwards.pairs, 0.5) * 1e-3);
      size.tails.push_back(percentile(forwards.pairs, 0.99) * 1e-3);
      size.totals.push_back(static_cast<double>(forwards.total) * 1e-6);
      size.ratios.push_back(size.totals.back() / sizes[0].totals.back());
    }
  }
  Table table{.name = "thousand_layers",
              .title =
                  "Five forwards over layers of 16 bytes, two ranks, nothing computed (median "
                  "of " +
                  std::to_string(effort.repetitions) + " runs, spread)",
              .columns = {{"layers", 0},
                          {"pair_mean_us", 1},
                          {"pair_p50_us", 1},
                          {"pair_p99_us", 1},
                          {"total_ms", 1},
                          {"total_ratio"},
                          {"goal"}},
              .rows = {},
              .notes = {"A pair is the begin and the end of one layer's forward; the gather of a "
                        "layer is in it as far as it was not done before."}};
  for (const Size& size : sizes) {
    table.rows.push_back({static_cast<double>(size.layers), spread_of(size.means),
                          spread_of(size.medians), spread_of(size.tails), spread_of(size.totals),
                          spread_of(size.ratios),
                          size.layers == sizes[0].layers ? "" : "mean <= 50, ratio 2"});
  }
  return table;
}

}  // namespace troupe::bench
