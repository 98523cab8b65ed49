// Trains a few steps, saves a checkpoint and exports the parameters to a folder, and writes down
// what is in the files: expected.txt, as compare.py reads it.
#include "troupe/test/support/checkpoints.hpp"

#include <cstdio>
#include <iostream>

namespace troupe::test {
namespace {

constexpr int ranks = 3;

std::string hex(const void* data, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    std::array<char, 3> digits{};
    static_cast<void>(std::snprintf(digits.data(), digits.size(), "%02x",
                                    unsigned{static_cast<const unsigned char*>(data)[i]}));
    text += digits.data();
  }
  return text;
}

std::string shape_text(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) {
    text += std::to_string(extent) + ",";
  }
  return text.empty() ? "," : text;
}

Model a_model() {
  Model model;
  const UnitId one = model.add_unit("one");
  model.add_parameter(one, {.name = "w", .shape = {7, 5}});
  model.add_parameter(one, {.name = "half", .shape = {3, 3}, .dtype = DType::bf16});
  const UnitId two = model.add_unit("zwei_\"ü\"");
  model.add_parameter(two, {.name = "none", .shape = {0, 4}});
  model.add_parameter(two, {.name = "frozen", .shape = {}, .trainable = false});
  return model;
}

int run(const std::filesystem::path& folder) {
  std::vector<std::string> of_rank(ranks);
  const std::string found =
      with_runtime(ranks, a_model(), {}, [&](Runtime& runtime, World& world, Findings&) {
        ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
        AdamW adamw;
        toy_step(runtime, world.rank(), 0, adamw);
        const std::string blob = "blob of rank " + std::to_string(world.rank());
        save(runtime, folder, {.blob = blob});
        std::string& lines = of_rank[static_cast<std::size_t>(world.rank())];
        const auto add = [&](const std::string& file, const std::string& tensor,
                             const std::string& rest) {
          lines += file + " " + tensor + " " + rest + "\n";
        };
        // Of the rank's own file: by its shards, not by what was written.
        const std::string own =
            "step-000000001/rank-0000" + std::to_string(world.rank()) + ".safetensors";
        for (const Bucket& bucket : runtime.bucket_plan().buckets) {
          const ShardView shard = runtime.impl().shard(bucket.id);
          for (const ShardPiece& piece : shard.pieces) {
            const std::string& name =
                runtime.model().parameters()[bucket.parameters[piece.index]].full_name;
            const auto part = [&](const float* values) {
              return "F32 " + std::to_string(piece.numel) + ", " +
                     hex(values + piece.shard_offset,
                         static_cast<std::size_t>(piece.numel) * sizeof(float));
            };
            add(own, "weights/" + name, part(shard.weights.data()));
            if (bucket.trainable) {
              add(own, "states/adamw.m/" + name, part(runtime.state("adamw.m", bucket.id).data()));
              add(own, "states/adamw.v/" + name, part(runtime.state("adamw.v", bucket.id).data()));
            }
          }
        }
        add(own, "blob",
            "U8 " + std::to_string(blob.size()) + ", " + hex(blob.data(), blob.size()));
        export_full(runtime, folder / "own.safetensors");
        export_full(runtime, folder / "fp32.safetensors", {.dtype = DType::f32});
        for (const Parameter& parameter : runtime.model().parameters()) {
          const std::vector<float> values = runtime.full_parameter(parameter.full_name);
          std::vector<BFloat16> rounded(values.size());
          std::ranges::transform(values, rounded.begin(), to_bfloat16);
          const std::string shape = shape_text(parameter.spec.shape) + " ";
          const std::string wide = "F32 " + shape + hex(values.data(), values.size() * 4);
          if (world.rank() == 0) {
            add("fp32.safetensors", parameter.full_name, wide);
            add("own.safetensors", parameter.full_name,
                parameter.spec.dtype == DType::f32
                    ? wide
                    : "BF16 " + shape + hex(rounded.data(), rounded.size() * 2));
          }
        }
      });
  std::string lines;
  for (const std::string& each : of_rank) {
    lines += each;
  }
  write_bytes(folder / "expected.txt", lines);
  std::cerr << found;
  return found.empty() ? 0 : 1;
}

}  // namespace
}  // namespace troupe::test

int main(int count, char** arguments) {
  return count == 2 ? troupe::test::run(arguments[1]) : 2;
}
