/// S17, S25 and S32 at random: where launches follow the agreed order, each rank uses what it
/// likes, in its own order; under full_shard each says what it leaves out.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe::test {
namespace {

constexpr UnitId layers = 6;

/// D4 with smaller layers, of which the last one also uses the weight of the first.
Model model_of(bool tied) {
  Model model = d4_model(layers, 64);
  if (tied) {
    model.tie(layers - 1, "tied", 0, "w");
  }
  return model;
}

/// What one rank does in one micro-batch: all forwards, then backwards of some of them.
struct RankProgram {
  std::vector<UnitId> forwards;
  std::vector<UnitId> backwards;

  static RankProgram random(Random random) {
    RankProgram program;
    for (UnitId layer = 0; layer < layers; ++layer) {
      const std::vector<int> counts{0, 1, 1, 2};
      for (int uses = random.of(counts); uses > 0; --uses) {
        program.forwards.push_back(layer);
        if (random.percent(80)) {
          program.backwards.push_back(layer);
        }
      }
    }
    for (std::vector<UnitId>* order : {&program.forwards, &program.backwards}) {
      for (std::size_t i = order->size(); i-- > 1;) {
        std::swap((*order)[i], (*order)[random.below(i + 1)]);
      }
    }
    return program;
  }
};

/// What `rank` does there, the same on every rank that asks.
struct Choice {
  RankProgram program;
  std::vector<bool> skipped = std::vector<bool>(layers);  ///< said, not left out

  Choice(std::uint64_t seed, int rank, int step, int micro_batch, bool common) {
    const auto at = [&](int of_rank) {
      return Random(seed * 10000 +
                    static_cast<std::uint64_t>(of_rank * 100 + step * 10 + micro_batch));
    };
    program = RankProgram::random(at(common ? 99 : rank));
    if (common) {
      Random random = at(rank);
      for (UnitId layer = 0; layer < layers; ++layer) {
        skipped[layer] = random.percent(30);
      }
    }
  }
};

void run(D4Trainer& trainer, const Choice& choice) {
  const auto scope = trainer.runtime.micro_batch();
  for (const UnitId layer : choice.program.forwards) {
    if (choice.skipped[layer]) {
      trainer.runtime.skip(layer);
    } else {
      trainer.forward(layer);
    }
  }
  for (const UnitId layer : choice.program.backwards) {
    if (choice.skipped[layer]) {
      trainer.runtime.skip(layer, Pass::backward);
      continue;
    }
    const Use use = trainer.runtime.backward(layer, trainer.stream);
    trainer.read(use, layer);
    for (const UnitParameter& each : trainer.runtime.model().units()[layer].parameters) {
      const GradientView view = use.gradient(each.name);
      const float gradient = d4_gradient(trainer.world.rank(), layer);
      trainer.compute([view, gradient] {
        for (float& value : view.as<float>()) {
          value = view.accumulate ? value + gradient : gradient;
        }
      });
    }
  }
}

/// Empty if the ranks train one model, and launch alike.
std::string train(std::uint64_t seed, int ranks, bool tied, bool common, const Options& options) {
  LaunchLog launches(ranks);
  std::string wrong = on_ranks(
      ranks,
      [&](World& world, Findings& findings) {
        D4Trainer trainer(world, findings, model_of(tied), options);
        trainer.stream =
            seed % 2 == 0 ? nullptr : &world.host_device().create_host_stream("compute");
        for (int step = 0; step < 4; ++step) {
          for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
            run(trainer, Choice(seed, world.rank(), step, micro_batch, common));
            for (int rank = 0; rank < ranks; ++rank) {
              const Choice choice(seed, rank, step, micro_batch, common);
              for (const UnitId layer : choice.program.backwards) {
                for (const UnitParameter& each :
                     trainer.runtime.model().units()[layer].parameters) {
                  if (!choice.skipped[layer]) {
                    trainer.oracle.contribute(each.parameter, d4_gradient(rank, layer));
                  }
                }
              }
            }
          }
          trainer.runtime.finish_gradients();
          trainer.optimize();
        }
        trainer.wait_for_stream();
        trainer.expect_oracle();
      },
      &launches);
  return launches.same_on_all_ranks() ? wrong : wrong + "the ranks launch differently\n";
}

Options of_seed(Options options, std::uint64_t seed) {
  options = seed % 4 == 0 ? without_overlap(options) : options;
  options.gradient_slots.reset();
  options.free_full_gradients = seed % 3 != 0;
  if (options.free_full_gradients) {
    options.gradient_slots = static_cast<int>(layers);  // any of them may have to wait
  }
  return options;
}

constexpr std::uint64_t seeds = 12;

TEST_CASE("S17, S25, S32: ranks that use units of their own choice train one model") {
  std::vector<D4Variant> variants = d4_agreed_variants();
  variants.push_back(
      {"sharded_optimizer, fused", {.strategy = Strategy::sharded_optimizer, .bucket_bytes = 512}});
  for (const D4Variant& variant : variants) {
    for (const int ranks : {2, 3, 4, 7}) {
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        if (ranks % variant.options.mesh.replicate == 0) {
          CAPTURE(std::string(variant.name));
          CAPTURE(ranks);
          CAPTURE(seed);
          const bool tied = seed % 5 < 2;
          CHECK(train(seed, ranks, tied, false, of_seed(variant.options, seed)) == "");
        }
      }
    }
  }
}

TEST_CASE("S25, S32: ranks that say which units they leave out train one model") {
  for (const auto& variants : {d4_full_shard_variants(), d4_agreed_variants()}) {
    for (const D4Variant& variant : variants) {
      for (const int ranks : {2, 4}) {
        for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
          CAPTURE(std::string(variant.name));
          CAPTURE(ranks);
          CAPTURE(seed);
          const bool tied = seed % 5 < 2;
          CHECK(train(seed, ranks, tied, true, of_seed(variant.options, seed)) == "");
        }
      }
    }
  }
}

TEST_CASE("ranks that do the same keep together with few gradient slots, in any order") {
  for (const D4Variant& variant : d4_agreed_variants()) {
    for (const int gradient_slots : {2, 3}) {
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        if (variant.options.free_full_gradients) {
          CAPTURE(std::string(variant.name));
          CAPTURE(gradient_slots);
          CAPTURE(seed);
          Options options = variant.options;
          options.gradient_slots = gradient_slots;
          LaunchLog launches(4);
          CHECK(on_ranks(
                    4,
                    [&](World& world, Findings& findings) {
                      D4Trainer trainer(world, findings, model_of(false), options);
                      for (int step = 0; step < 4; ++step) {
                        Random random(seed * 10 + static_cast<std::uint64_t>(step));
                        RankProgram program;
                        for (UnitId layer = 0; layer < layers; ++layer) {
                          if (random.percent(75)) {
                            program.forwards.push_back(layer);
                          }
                        }
                        program.backwards = program.forwards;
                        for (std::size_t i = program.backwards.size(); i-- > 1;) {
                          std::swap(program.backwards[i], program.backwards[random.below(i + 1)]);
                        }
                        {
                          const auto scope = trainer.runtime.micro_batch();
                          for (const UnitId layer : program.forwards) {
                            trainer.forward(layer);
                          }
                          for (const UnitId layer : program.backwards) {
                            trainer.backward(layer);
                          }
                        }
                        trainer.runtime.finish_gradients();
                        trainer.optimize();
                      }
                      trainer.expect_oracle();
                    },
                    &launches) == "");
          CHECK(launches.same_on_all_ranks());
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::test
