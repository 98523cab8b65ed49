/// What dtypes cost, byte for byte, and what they lose.
#include "troupe/test/support/precision.hpp"
#include "troupe/test/support/ranks.hpp"
#include "troupe/test/support/toy_trainer.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

namespace troupe::test {
namespace {

constexpr std::int64_t layers = 4;
constexpr std::int64_t layer_numel = 100;

/// Of one rank, by the formulas of docs/strategies.md, with the dtypes of each part.
MemoryReport memory_by_formula(Strategy strategy, int ranks, int rank, const Precision& precision) {
  const auto bytes = [](std::int64_t numel, DType dtype) {
    return numel * (dtype == DType::f32 ? 4 : 2);
  };
  const auto slot = [&](std::int64_t numel, DType dtype) {
    return (bytes(numel, dtype) + 255) / 256 * 256;
  };
  const bool owned = strategy == Strategy::owner_broadcast;
  const std::int64_t unit = owned ? 16 : 16 * ranks;
  const std::int64_t padded = (layer_numel + unit - 1) / unit * unit;
  // Four equal layers are dealt in turn to at most four owners, largest rest first.
  const std::int64_t shards = owned ? layers / ranks + (rank < layers % ranks ? 1 : 0) : layers;
  const std::int64_t shard = owned ? padded : padded / ranks;
  const bool in_slot =
      strategy != Strategy::full_shard && precision.parameters == precision.main_weights;
  MemoryReport memory;
  memory.main_weights = in_slot ? 0 : shards * bytes(shard, precision.main_weights);
  memory.main_gradients = shards * bytes(shard, precision.main_gradients);
  memory.parameter_slots = layers * slot(padded, precision.parameters);
  memory.gradient_slots = layers * slot(padded, precision.buffers);
  memory.gradient_staging = precision.buffers == precision.wire ? 0 : slot(padded, precision.wire);
  const std::int64_t wide = shards > 0 ? 4 * shard : 0;
  memory.wide_shard = (precision.main_weights == DType::bf16 ? wide : 0) +
                      (precision.main_gradients == DType::bf16 ? wide : 0);
  return memory;
}

TEST_CASE("memory and what is sent are those of the dtypes, byte for byte") {
  for (const Precision& precision : precisions()) {
    Model model;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      model.add_parameter(model.add_unit("L" + std::to_string(layer)),
                          {.name = "w", .shape = {layer_numel}, .dtype = precision.parameters});
    }
    for (const Strategy strategy :
         {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
      for (const int ranks : {1, 2, 3, 4, 7}) {
        CAPTURE(text_of(precision));
        CAPTURE(std::string(row_of(strategy).name));
        CAPTURE(ranks);
        Options options = with(precision, {.strategy = strategy, .free_full_gradients = false});
        options.reshard_after_forward = strategy != Strategy::full_shard;
        options.bucket_bytes = strategy == Strategy::sharded_optimizer ? 1 : 0;
        CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
                Runtime runtime(world, model, options);
                ToyTrainer trainer{runtime, world.rank()};
                trainer.initialize();
                static_cast<void>(trainer.step(accumulating_step(layers, "-r"), 0));
                Sgd({.learning_rate = 0.5F}).step(runtime);
                static_cast<void>(trainer.step(accumulating_step(layers, "-r"), 1));
                const Report report = runtime.report();
                const MemoryReport right =
                    memory_by_formula(strategy, ranks, world.rank(), precision);
                const auto equal = [&](const char* what, std::int64_t MemoryReport::* member,
                                       Purpose purpose) {
                  findings.equal(report.memory.*member, right.*member, what);
                  findings.equal(
                      world.device().counters().bytes[static_cast<std::size_t>(purpose)].load(),
                      right.*member, std::string(what) + ", allocated");
                };
                equal("main weights", &MemoryReport::main_weights, Purpose::main_weights);
                equal("main gradients", &MemoryReport::main_gradients, Purpose::main_gradients);
                equal("parameters", &MemoryReport::parameter_slots, Purpose::parameter_slots);
                equal("gradients", &MemoryReport::gradient_slots, Purpose::gradient_slots);
                equal("staging", &MemoryReport::gradient_staging, Purpose::gradient_staging);
                equal("wide shard", &MemoryReport::wide_shard, Purpose::wide_shard);
                findings.equal(report.memory.total(), right.total(), "all of it");
                const bool narrow_weights = precision.main_weights == DType::bf16;
                const bool copies = precision.parameters != precision.main_weights;
                findings.equal(report.unsharded.main_weights,
                               layers * layer_numel * (narrow_weights ? 2 : 4),
                               "unsharded weights");
                findings.equal(report.unsharded.parameter_slots,
                               copies ? layers * layer_numel * 2 : 0, "unsharded copies");
                findings.equal(
                    report.unsharded.main_gradients,
                    layers * layer_numel * (precision.main_gradients == DType::bf16 ? 2 : 4),
                    "unsharded gradients");
                const auto reduce = static_cast<std::size_t>(row_of(strategy).reduce_by);
                const std::int64_t sent = layers * runtime.layout(0).numel_padded() *
                                          (precision.wire == DType::bf16 ? 2 : 4);
                findings.equal(report.bytes_sent_last_step[reduce],
                               static_cast<std::uint64_t>(sent), "sent to reduces");
              }) == "");
      }
    }
  }
}

/// One bf16 parameter: gradient 1, then 256 times 2^-9, the same on all ranks; the mean.
float accumulated(int ranks, const Options& options, bool each_reduces) {
  float result = -1.0F;
  CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
          Model model;
          model.add_parameter(model.add_unit("L0"),
                              {.name = "w", .shape = {5}, .dtype = DType::bf16});
          Runtime runtime(world, model, options);
          runtime.initialize([](ParameterView) {});
          constexpr int micro_batches = 257;
          for (int i = 0; i < micro_batches; ++i) {
            const auto scope =
                runtime.micro_batch({.reduce = each_reduces || i == micro_batches - 1});
            static_cast<void>(runtime.forward(0));
            const Use use = runtime.backward(0);
            const GradientView view = use.gradient("w");
            const float gradient = i == 0 ? 1.0F : std::ldexp(1.0F, -9);
            for (std::int64_t j = 0; j < view.numel; ++j) {
              if (view.dtype == DType::f32) {
                float& value = view.as<float>()[static_cast<std::size_t>(j)];
                value = view.accumulate ? value + gradient : gradient;
              } else {
                BFloat16& value = view.as<BFloat16>()[static_cast<std::size_t>(j)];
                value = to_bfloat16(view.accumulate ? to_float(value) + gradient : gradient);
              }
            }
          }
          runtime.finish_gradients();
          Update update = runtime.update();
          const ShardView shard = update.shard(0);
          for (const ShardPiece& piece : shard.pieces) {
            const float g = shard.gradients[static_cast<std::size_t>(piece.shard_offset)];
            findings.expect(
                shard.gradients[static_cast<std::size_t>(piece.shard_offset + piece.numel - 1)] ==
                    g,
                "elements differ");
            result = world.rank() == 0 ? g : result;  // rank 0 has some
          }
        }) == "");
  return result;
}

TEST_CASE("S37: small gradients are lost only where they are added up in bf16") {
  constexpr DType f32 = DType::f32;
  constexpr DType bf16 = DType::bf16;
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    for (const int ranks : {1, 2, 3, 4, 7, 8}) {
      CAPTURE(std::string(row_of(strategy).name));
      CAPTURE(ranks);
      const auto with_dtypes = [&](DType buffers, DType wire, DType main_gradients) {
        return with({.buffers = buffers, .wire = wire, .main_gradients = main_gradients},
                    {.strategy = strategy, .free_full_gradients = false});
      };
      // Each micro-batch is added to the main gradient.
      CHECK(accumulated(ranks, with_dtypes(f32, f32, f32), true) == 1.5F);
      CHECK(accumulated(ranks, with_dtypes(bf16, bf16, f32), true) == 1.5F);
      CHECK(accumulated(ranks, with_dtypes(f32, f32, bf16), true) == 1.0F);
      CHECK(accumulated(ranks, with_dtypes(bf16, bf16, bf16), true) == 1.0F);
      // All are added up in the full buffer, and reduced once.
      CHECK(accumulated(ranks, with_dtypes(f32, f32, f32), false) == 1.5F);
      CHECK(accumulated(ranks, with_dtypes(f32, bf16, f32), false) == 1.5F);
      CHECK(accumulated(ranks, with_dtypes(f32, bf16, bf16), false) == 1.5F);
      CHECK(accumulated(ranks, with_dtypes(bf16, bf16, f32), false) == 1.0F);
      CHECK(accumulated(ranks, with_dtypes(bf16, f32, f32), false) == 1.0F);
    }
  }
}

}  // namespace
}  // namespace troupe::test
