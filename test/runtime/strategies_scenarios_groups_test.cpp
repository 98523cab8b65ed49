/// Scenarios about process groups and divisors, under every strategy: experts, two optimizers,
/// groups of one, meshes of two dimensions.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace troupe::test {
namespace {

constexpr std::int64_t numel = 256;

/// Dense and expert layers in turns: dense.0, expert.0, dense.1, …
Model dense_and_experts(UnitId each) {
  Model model;
  for (UnitId i = 0; i < each; ++i) {
    model.add_parameter(model.add_unit("dense." + std::to_string(i)),
                        {.name = "w", .shape = {numel}});
    model.add_parameter(model.add_unit("expert." + std::to_string(i)),
                        {.name = "w", .shape = {numel}, .group = std::string(expert_group)});
  }
  return model;
}

bool is_expert(UnitId unit) {
  return unit % 2 == 1;
}

/// Starts at 0, and moves by the sum over the group of (r+1)(unit+1) in each step.
struct ExpertTrainer {
  Findings& findings;
  Runtime runtime;
  int rank;
  int ep;
  int steps = 0;

  ExpertTrainer(World& world, Findings& found, const Model& model, const Options& options)
      : findings(found),
        runtime(world, model, options),
        rank(world.rank()),
        ep(runtime.options().mesh.ep) {
    runtime.initialize([](ParameterView) {});
  }

  /// Summed over the ranks (of four) that share the unit.
  float gradient_sum(UnitId unit) const {
    float sum = 0.0F;
    for (int peer = 0; peer < 4; ++peer) {
      sum += !is_expert(unit) || peer % ep == rank % ep ? d4_gradient(peer, unit) : 0.0F;
    }
    return sum;
  }
  void use(UnitId unit, bool backward) {
    const Use use = backward ? runtime.backward(unit) : runtime.forward(unit);
    const float right = -gradient_sum(unit) * static_cast<float>(steps);
    findings.expect(std::ranges::all_of(use["w"].as<float>(), [&](float p) { return p == right; }),
                    "rank " + std::to_string(rank) + " reads other weights in unit " +
                        std::to_string(unit) + ": " + std::to_string(use["w"].as<float>()[0]) +
                        ", not " + std::to_string(right));
    if (backward) {
      std::ranges::fill(use.gradient("w").as<float>(), d4_gradient(rank, unit));
    }
  }
  void micro_batch() {
    const auto scope = runtime.micro_batch();
    const auto units = static_cast<UnitId>(runtime.model().units().size());
    for (UnitId unit = 0; unit < units; ++unit) {
      use(unit, false);
    }
    for (UnitId unit = units; unit-- > 0;) {
      use(unit, true);
    }
  }
  /// An optimizer that knows of some buckets only: p -= gradient.
  void optimize(Update& update, bool experts) const {
    for (const Bucket& bucket : runtime.bucket_plan().buckets) {
      if ((bucket.group == expert_group) == experts) {
        const ShardView shard = update.shard(bucket.id);
        for (std::size_t i = 0; i < shard.weights.size(); ++i) {
          shard.weights[i] -= shard.gradients[i];
        }
        update.finish(bucket.id);
      }
    }
  }
};

enum class Optimizers { in_one_update, dense_first, experts_first };

/// The most gathers of one bucket between two step ends, and all of the last step.
struct GatherCounts {
  std::uint64_t most = 0;
  std::uint64_t last_step = 0;
};

GatherCounts count_gathers(const Options& options, Optimizers optimizers, std::string& wrong) {
  constexpr int steps = 4;
  LaunchLog launches(4);
  std::vector<Ticket> ends;  // of steps, as rank 0's next ticket
  wrong = on_ranks(
      4,
      [&](World& world, Findings& findings) {
        ExpertTrainer trainer(world, findings, dense_and_experts(4), options);
        for (int step = 0; step < steps; ++step) {
          trainer.micro_batch();
          trainer.runtime.finish_gradients();
          if (world.rank() == 0) {
            ends.push_back(world.context().actors().next_ticket());
          }
          if (optimizers == Optimizers::in_one_update) {
            Update update = trainer.runtime.update();
            trainer.optimize(update, false);
            trainer.optimize(update, true);
          } else {
            for (const bool second : {false, true}) {
              Update update = trainer.runtime.update();
              trainer.optimize(update, second == (optimizers == Optimizers::dense_first));
            }
          }
          ++trainer.steps;
        }
      },
      &launches);
  if (!launches.same_on_all_ranks()) {
    wrong += "the ranks launch differently";
  }
  GatherCounts counts;
  for (std::size_t step = 1; step < ends.size(); ++step) {
    std::map<BucketId, std::uint64_t> of_bucket;
    counts.last_step = 0;
    for (const LaunchRecord& launch : launches.of_rank[0]) {
      if (launch.op == unshards_by(options) && launch.bucket != no_bucket &&
          launch.ticket >= ends[step - 1] && launch.ticket < ends[step]) {
        ++counts.last_step;
        counts.most = std::max(counts.most, ++of_bucket[launch.bucket]);
      }
    }
  }
  return counts;
}

std::vector<D4Variant> expert_variants() {
  std::vector<D4Variant> variants;
  for (D4Variant variant : d4_variants()) {
    if (variant.options.mesh.replicate > 1) {
      continue;
    }
    variant.options.mesh.ep = 2;
    variant.options.gradient_divisor = 1.0F;
    variant.options.expert_gradient_divisor = 1.0F;
    if (!variant.options.keep_gathered.empty()) {
      variant.options.keep_gathered = {"expert.1"};
    }
    variants.push_back(variant);
  }
  return variants;
}

/// What one optimizer leads to in a step.
GatherCounts gathers_needed(const Options& options) {
  if (is_agreed(options) || !options.reshard_after_forward) {
    return {.most = 1, .last_step = 8};
  }
  // Two for each, less the two that the slots keep across the turn (and one for the layer that is
  // always kept).
  return {.most = 2, .last_step = options.keep_gathered.empty() ? 14U : 13U};
}

TEST_CASE("S24: two optimizers within one update lead to no more gathers than one does") {
  for (const D4Variant& variant : expert_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    std::string wrong;
    const GatherCounts counts = count_gathers(variant.options, Optimizers::in_one_update, wrong);
    const GatherCounts needed = gathers_needed(variant.options);
    CHECK(wrong == "");
    CHECK(counts.most == needed.most);
    CHECK(counts.last_step == needed.last_step);
  }
}

TEST_CASE("S24: a second update in a step costs what the first has gathered ahead, and no more") {
  for (const D4Variant& variant : expert_variants()) {
    for (const Optimizers optimizers : {Optimizers::dense_first, Optimizers::experts_first}) {
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      std::string wrong;
      const GatherCounts counts = count_gathers(variant.options, optimizers, wrong);
      const GatherCounts needed = gathers_needed(variant.options);
      // Whatever shards it asks for, an update gives back all that is gathered. The depth is 1.
      const std::uint64_t ahead = variant.options.overlap ? 1 : 0;
      CHECK(wrong == "");
      CHECK(counts.most == needed.most + ahead);
      CHECK(counts.last_step == needed.last_step + ahead);
    }
  }
}

TEST_CASE("S27: in a group of one, 16 micro-batches of gradient 3 accumulate to exactly 48") {
  for (const bool whole_world : {true, false}) {  // or an expert group inside a world of four
    const int ranks = whole_world ? 1 : 4;
    for (const D4Variant& variant : d4_variants()) {
      if (variant.options.mesh.replicate > 1 ||
          (whole_world && variant.options.regather_group_size > 0)) {
        continue;
      }
      CAPTURE(whole_world);
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      Options options = variant.options;
      options.mesh.ep = whole_world ? 1 : 4;
      options.gradient_divisor = 1.0F;
      options.expert_gradient_divisor = 1.0F;
      options.keep_gathered.clear();
      CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
              Runtime runtime(world, dense_and_experts(1), options);
              runtime.initialize([](ParameterView) {});
              for (int micro_batch = 0; micro_batch < 16; ++micro_batch) {
                const auto scope = runtime.micro_batch();
                for (const UnitId unit : {0U, 1U}) {
                  static_cast<void>(runtime.forward(unit));
                }
                for (const UnitId unit : {1U, 0U}) {
                  const Use use = runtime.backward(unit);
                  std::ranges::fill(use.gradient("w").as<float>(), 3.0F);
                }
              }
              runtime.finish_gradients();
              Update update = runtime.update();
              for (const UnitId unit : {0U, 1U}) {
                const float right = is_expert(unit) || whole_world ? 48.0F : 4.0F * 48.0F;
                const ShardView shard = update.shard(unit);
                findings.expect(
                    std::ranges::all_of(shard.gradients, [&](float g) { return g == right; }),
                    "the gradient of unit " + std::to_string(unit) + " is not " +
                        std::to_string(right));
                if (is_expert(unit)) {
                  double squares = 0.0;
                  bool non_finite = false;
                  world.device().squared_norm(Stream::caller(), shard.gradients.data(),
                                              static_cast<std::int64_t>(shard.gradients.size()),
                                              &squares, &non_finite);
                  findings.equal(std::sqrt(squares), 48.0 * 16.0, "norm");
                }
              }
              const Report report = runtime.report();
              findings.equal(report.schedule.reduces, 32U, "reduces");
              findings.equal(report.collectives[static_cast<std::size_t>(reduces_by(options))], 32U,
                             "collectives that reduce");
            }) == "");
    }
  }
}

TEST_CASE("S28: a custom divisor divides the sum once, on a mesh of one or of two dimensions") {
  struct Mesh {
    DeviceMesh mesh;
    bool at_step_end;
  };
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    for (const Mesh& row :
         {Mesh{{}, false}, Mesh{{.replicate = 2, .shard = 4}, false},
          Mesh{{.replicate = 2, .shard = 4}, true}, Mesh{{.replicate = 4, .shard = 2}, false},
          Mesh{{.replicate = 8, .shard = 1}, true}}) {
      CAPTURE(static_cast<int>(strategy));
      CAPTURE(row.mesh.replicate);
      CAPTURE(row.at_step_end);
      const Options options{.strategy = strategy,
                            .mesh = row.mesh,
                            .gradient_divisor = 300.0F,
                            .sum_replicas_at_step_end = row.at_step_end};
      if (strategy == Strategy::owner_broadcast && row.mesh.replicate > 1) {
        CHECK(on_ranks(8, [&](World& world, Findings& findings) {
                expect_refused(
                    findings, "replicas of one owner's parameters", {"mesh.replicate"},
                    [&] { const Runtime refused(world, d4_model(), options); },
                    ErrorCode::bad_configuration);
              }) == "");
        continue;
      }
      CHECK(on_ranks(8, [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, d4_model(), options);
              trainer.micro_batch();
              trainer.runtime.finish_gradients();
              trainer.expect_gradients(
                  [](BucketId bucket) { return 36.0F * static_cast<float>(bucket + 1) / 300.0F; });
              trainer.optimize();
              trainer.expect_oracle();
            }) == "");
    }
  }
}

}  // namespace
}  // namespace troupe::test
