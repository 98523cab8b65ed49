/// Scenarios about experts, under every strategy: two optimizers, routing, meshes with replicas.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/experts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

namespace troupe::test {
namespace {

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
          trainer.note_updated(1.0F, 1.0F);
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

TEST_CASE("experts train with whatever is routed to them, and routing changes no launch") {
  struct Mesh {
    int ranks, replicate, ep;
  };
  for (const D4Variant& variant : expert_variants()) {
    for (const Mesh& mesh : {Mesh{2, 1, 2}, Mesh{4, 1, 2}, Mesh{4, 1, 4}, Mesh{6, 1, 3},
                             Mesh{6, 1, 2}, Mesh{8, 2, 2}, Mesh{8, 2, 4}}) {
      if ((mesh.replicate > 1 && variant.options.strategy == Strategy::owner_broadcast) ||
          (mesh.ranks / mesh.replicate % std::max(1, variant.options.regather_group_size) != 0)) {
        continue;
      }
      CAPTURE(std::string(variant.name));
      CAPTURE(variant.options.overlap);
      CAPTURE(mesh.ranks);
      CAPTURE(mesh.ep);
      Options options = variant.options;
      options.mesh = {.replicate = mesh.replicate, .ep = mesh.ep};
      options.expert_gradient_divisor.reset();  // as the others: the tokens of all ranks come here
      options.gradient_divisor = 8.0F;
      LaunchLog launches(mesh.ranks);
      CHECK(on_ranks(
                mesh.ranks,
                [&](World& world, Findings& findings) {
                  // 100 elements: uneven shards, and padding.
                  ExpertTrainer trainer(world, findings, dense_and_experts(3, 100), options);
                  for (int step = 0; step < 4; ++step) {
                    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
                      trainer.micro_batch([&](int peer, UnitId unit) {
                        return !is_expert(unit) || (peer + micro_batch + step) % 3 != 0;
                      });
                    }
                    trainer.runtime.finish_gradients();
                    Update update = trainer.runtime.update();
                    trainer.optimize(update, false);
                    trainer.optimize(update, true);
                    trainer.note_updated(8.0F, 8.0F);
                  }
                },
                &launches) == "");
      CHECK(launches.same_on_all_ranks());
    }
  }
}

}  // namespace
}  // namespace troupe::test
