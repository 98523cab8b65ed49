/// All parameters as one safetensors file, and what it takes to write it.
#include "troupe/runtime/checkpoint/safetensors.hpp"
#include "troupe/test/support/checkpoints.hpp"

#include <doctest/doctest.h>

#include <cstring>

namespace troupe::test {
namespace {

struct Exported {
  explicit Exported(const std::filesystem::path& file) : bytes(bytes_of(file)) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    const auto length = value_or_throw(safetensors_header_bytes(bytes, size));
    stored = value_or_throw(parse_safetensors_header(
        std::string_view(bytes).substr(8, static_cast<std::size_t>(length)), size));
  }
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const StoredTensor& tensor = stored.tensors.at(name);
    std::vector<T> values(static_cast<std::size_t>(tensor.numel));
    if (tensor.numel > 0) {
      std::memcpy(values.data(), bytes.data() + tensor.offset, values.size() * sizeof(T));
    }
    return values;
  }
  std::string bytes;
  StoredTensors stored;
};

Model a_model() {
  Model model;
  const UnitId one = model.add_unit("one");
  model.add_parameter(one, {.name = "w", .shape = {7, 5}});
  model.add_parameter(one, {.name = "half", .shape = {3}, .dtype = DType::bf16});
  const UnitId two = model.add_unit("two");
  model.add_parameter(two, {.name = "none", .shape = {0}});
  model.add_parameter(two, {.name = "large", .shape = {200}});
  model.add_parameter(two, {.name = "frozen", .shape = {}, .trainable = false});
  model.tie(two, "tied", one, "w");
  return model;
}

TEST_CASE("an export holds every parameter whole, in its own dtype or the one asked for") {
  const Model model = a_model();
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::sharded_optimizer, Strategy::owner_broadcast}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const bool replicas : {false, true}) {
        if (replicas && (ranks != 4 || strategy == Strategy::owner_broadcast)) {
          continue;
        }
        CAPTURE(row_of(strategy).name);
        CAPTURE(ranks);
        CAPTURE(replicas);
        TestFolder folder;
        std::map<std::string, std::vector<float>> right;
        CHECK(with_runtime(
                  ranks, model, {.strategy = strategy, .mesh = {.replicate = replicas ? 2 : 1}},
                  [&](Runtime& runtime, World& world, Findings& findings) {
                    ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
                    AdamW adamw;
                    toy_step(runtime, world.rank(), 0, adamw);
                    for (const Parameter& parameter : model.parameters()) {
                      const auto values = runtime.full_parameter(parameter.full_name);
                      if (world.rank() == 0) {
                        right[parameter.full_name] = values;
                      }
                    }
                    DeviceCounters& counters = world.device().counters();
                    constexpr auto temporary = static_cast<std::size_t>(Purpose::temporary);
                    counters.bytes_peak[temporary] = 0;
                    export_full(runtime, folder.path() / "own.safetensors");
                    std::int64_t largest = 0;
                    for (const Bucket& bucket : runtime.bucket_plan().buckets) {
                      largest = std::max(largest, runtime.layout(bucket.id).numel_padded() * 4);
                    }
                    findings.equal(counters.bytes_peak[temporary].load(), largest,
                                   "temporary bytes at the peak");
                    findings.equal(counters.bytes[temporary].load(), 0, "temporary bytes left");
                    export_full(runtime, folder.path() / "fp32.safetensors", {.dtype = DType::f32});
                    export_full(runtime, folder.path() / "bf16.safetensors",
                                {.dtype = DType::bf16});
                    toy_step(runtime, world.rank(), 1, adamw);
                  }) == "");
        CHECK(listing(folder.path()) == "bf16.safetensors fp32.safetensors own.safetensors");
        const Exported own(folder.path() / "own.safetensors");
        const Exported fp32(folder.path() / "fp32.safetensors");
        const Exported bf16(folder.path() / "bf16.safetensors");
        CHECK(own.stored.metadata == TensorMetadata{{"format", "pt"}, {"step", "1"}});
        CHECK(own.stored.tensors.size() == model.parameters().size());
        for (const Parameter& parameter : model.parameters()) {
          const std::string& name = parameter.full_name;
          CAPTURE(name);
          std::vector<std::uint16_t> rounded;
          for (const float value : right[name]) {
            rounded.push_back(to_bfloat16(value).bits);
          }
          CHECK(own.stored.tensors.at(name).shape == parameter.spec.shape);
          CHECK(fp32.values<float>(name) == right[name]);
          CHECK(bf16.values<std::uint16_t>(name) == rounded);
          if (parameter.spec.dtype == DType::f32) {
            CHECK(own.values<float>(name) == right[name]);
          } else {
            CHECK(own.stored.tensors.at(name).type == TensorType::bf16);
            CHECK(own.values<std::uint16_t>(name) == rounded);
          }
        }
      }
    }
  }
}

TEST_CASE("experts are exported under the name of their coordinate") {
  Model model;
  model.add_parameter(model.add_unit("dense"), {.name = "w", .shape = {5}});
  model.add_parameter(model.add_unit("expert"),
                      {.name = "w", .shape = {7}, .group = std::string(expert_group)});
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::sharded_optimizer, Strategy::owner_broadcast}) {
    TestFolder folder;
    WholeState state;
    CHECK(with_runtime(6, model, {.strategy = strategy, .mesh = {.ep = 3}},
                       [&](Runtime& runtime, World& world, Findings&) {
                         ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
                         state.add(runtime);
                         export_full(runtime, folder.path() / "x");
                       }) == "");
    const Exported exported(folder.path() / "x");
    CHECK(exported.stored.tensors.size() == 4);
    CHECK(exported.values<std::uint32_t>("dense.w") == state.values("weights/dense.w"));
    CHECK(exported.values<std::uint32_t>("expert.w.ep0") == state.values("weights/expert.w"));
    CHECK(exported.values<std::uint32_t>("expert.w.ep1") == state.values("weights/expert.w#1"));
    CHECK(exported.values<std::uint32_t>("expert.w.ep2") == state.values("weights/expert.w#2"));
    CHECK(state.values("weights/expert.w#1") != state.values("weights/expert.w#2"));
  }
}

TEST_CASE("an export that fails leaves the one before it, and the world") {
  for (int n = 0; n < 20; ++n) {
    CAPTURE(n);
    TestFolder folder;
    const auto file = folder.path() / "x";
    std::string before;
    std::array<std::string, 2> errors;
    CHECK(with_runtime(2, a_model(), {}, [&](Runtime& runtime, World& world, Findings&) {
            ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
            export_full(runtime, file);
            if (world.rank() == 0) {
              before = bytes_of(file);
            }
            AdamW adamw;
            toy_step(runtime, world.rank(), 0, adamw);
            int count = 0;
            try {
              export_full(runtime, file,
                          {.before = [&](FileOperation, const std::filesystem::path&) {
                            return count++ == n ? Result<void>(Failure{.code = ErrorCode::storage,
                                                                       .text = "no space"})
                                                : Result<void>();
                          }});
            } catch (const Error& error) {
              errors[static_cast<std::size_t>(world.rank())] = error.what();
            }
            toy_step(runtime, world.rank(), 1, adamw);
          }) == "");
    CHECK(errors[0] == errors[1]);
    if (n < 9) {  // remove, create, header, four parameters with elements, sync, rename
      CHECK(errors[0] == "rank 0: no space");
      CHECK(listing(folder.path()) == "x");
      CHECK(bytes_of(file) == before);
    } else {
      CHECK(errors[0] == (n == 9 ? "rank 0: no space" : ""));  // the last one: the folder's sync
      CHECK(bytes_of(file) != before);
    }
  }
}

}  // namespace
}  // namespace troupe::test
