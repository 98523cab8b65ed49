// An optimizer of one's own, written against the shard views: Lion (Chen et al. 2023, "Symbolic
// Discovery of Optimization Algorithms", algorithm 2). Trains on four ranks under each strategy and
// compares with the same training on plain vectors.
#include "troupe/runtime/runtime.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

namespace {

struct LionOptions {
  float learning_rate = 0.25F;
  float beta1 = 0.5F;  // powers of two keep this example exact
  float beta2 = 0.75F;
  float weight_decay = 0.0F;
};

/// One parameter's part, wherever it lies.
void lion(std::span<float> weights,
          std::span<const float> gradients,
          std::span<float> momentum,
          const LionOptions& options) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float mixed = options.beta1 * momentum[i] + (1.0F - options.beta1) * gradients[i];
    const float sign = mixed > 0.0F ? 1.0F : mixed < 0.0F ? -1.0F : 0.0F;
    weights[i] -= options.learning_rate * (sign + options.weight_decay * weights[i]);
    momentum[i] = options.beta2 * momentum[i] + (1.0F - options.beta2) * gradients[i];
  }
}

/// Each rank updates its own shards. The momentum is kept in the runtime: it is counted in the
/// report, saved in checkpoints, and moves along when ranks or strategy are others.
class Lion {
 public:
  explicit Lion(const LionOptions& options) : options_(options) {}

  void step(troupe::Runtime& runtime) {
    troupe::Update update = runtime.update();
    for (const troupe::Bucket& bucket : runtime.bucket_plan().buckets) {
      if (bucket.trainable) {
        const troupe::ShardView shard = update.shard(bucket.id);
        const std::span<float> momentum = runtime.state("lion.m", bucket.id);
        for (const troupe::ShardPiece& piece : shard.pieces) {  // what lies between them is padding
          const auto offset = static_cast<std::size_t>(piece.shard_offset);
          const auto numel = static_cast<std::size_t>(piece.numel);
          lion(shard.weights.subspan(offset, numel), shard.gradients.subspan(offset, numel),
               momentum.subspan(offset, numel), options_);
        }
      }
      update.finish(bucket.id);  // it may be gathered again while later ones are being updated
    }
  }

 private:
  LionOptions options_;
};

// ---- something to train: weights that shall come close to what the ranks want on average
// ---------

constexpr int ranks = 4;
constexpr int steps = 40;
constexpr std::size_t numel = 1000;
constexpr troupe::UnitId units = 3;

/// What a rank wants; integers, so that sums are exact in any order.
float target(int rank, troupe::UnitId unit, std::size_t i) {
  return static_cast<float>((static_cast<int>(i) * 7 + static_cast<int>(unit)) % 9 - 4 + rank);
}

troupe::Model make_model() {
  troupe::Model model;
  for (troupe::UnitId unit = 0; unit < units; ++unit) {
    model.add_parameter(model.add_unit("block." + std::to_string(unit)),
                        {.name = "w", .shape = {numel}});
  }
  return model;
}

std::vector<float> train_unsharded(troupe::UnitId unit) {
  std::vector<float> weights(numel);
  std::vector<float> momentum(numel);
  std::vector<float> gradients(numel);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < numel; ++i) {
      float sum = 0.0F;
      for (int rank = 0; rank < ranks; ++rank) {
        sum += weights[i] - target(rank, unit, i);
      }
      gradients[i] = sum / static_cast<float>(ranks);
    }
    lion(weights, gradients, momentum, {});
  }
  return weights;
}

/// Whether all parameters equal those of the unsharded training.
bool train(troupe::World& world, troupe::Strategy strategy) {
  troupe::Options options;
  options.strategy = strategy;
  troupe::Runtime runtime(world, make_model(), options);
  runtime.initialize([](troupe::ParameterView) {});  // zeros
  Lion optimizer({});
  for (int step = 0; step < steps; ++step) {
    {
      const auto micro_batch = runtime.micro_batch();
      for (troupe::UnitId unit = units; unit-- > 0;) {
        const troupe::Use use = runtime.backward(unit);
        const std::span<const float> weights = use["w"].as<float>();
        const std::span<float> gradient = use.gradient("w").as<float>();
        for (std::size_t i = 0; i < numel; ++i) {
          gradient[i] = weights[i] - target(world.rank(), unit, i);
        }
      }
    }
    runtime.finish_gradients();
    optimizer.step(runtime);
  }
  bool equal = true;
  for (troupe::UnitId unit = 0; unit < units; ++unit) {
    const std::vector<float> weights =
        runtime.full_parameter("block." + std::to_string(unit) + ".w");
    equal = weights == train_unsharded(unit) && equal;
  }
  return equal;
}

}  // namespace

int main() {
  try {
    bool all_equal = true;
    for (const auto strategy :
         {troupe::Strategy::owner_broadcast, troupe::Strategy::sharded_optimizer,
          troupe::Strategy::full_shard}) {
      troupe::World::local(ranks).run([&](troupe::World& world) {
        const bool equal = train(world, strategy);
        if (world.rank() == 0) {
          std::printf("%s: %s unsharded training\n", troupe::row_of(strategy).name,
                      equal ? "equals" : "differs from");
          all_equal = all_equal && equal;
        }
      });
    }
    return all_equal ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
