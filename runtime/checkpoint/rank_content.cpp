#include "troupe/runtime/checkpoint/rank_content.hpp"

#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

StateTable states_of(const RuntimeImpl& runtime) {
  StateTable table;
  for (const auto& [name, buffers] : runtime.states) {
    for (BucketId bucket = 0; bucket < buffers.size(); ++bucket) {
      if (buffers[bucket].data() != nullptr) {
        table[name].push_back(bucket);
      }
    }
  }
  return table;
}

std::vector<ShardPiece> saved_pieces(const RuntimeImpl& runtime, int rank, BucketId bucket) {
  const DeviceMesh& mesh = runtime.mesh;
  if (rank >= mesh.shard) {
    return {};
  }
  const bool expert = runtime.plan.buckets[bucket].group == expert_group;
  return runtime.layouts[bucket].pieces(expert ? rank / mesh.ep : rank);
}

CheckpointIndex make_index(const RuntimeImpl& runtime, const StateTable& states) {
  CheckpointIndex index;
  index.step = runtime.steps;
  index.world_size = runtime.context.size();
  index.mesh = runtime.mesh;
  index.strategy = runtime.options.strategy;
  for (const Parameter& parameter : runtime.model.parameters()) {
    index.parameters.push_back({.name = parameter.full_name,
                                .shape = parameter.spec.shape,
                                .dtype = parameter.spec.dtype,
                                .trainable = parameter.spec.trainable,
                                .group = parameter.spec.group,
                                .pieces = {},
                                .states = {},
                                .counts = {}});
  }
  for (const Bucket& bucket : runtime.plan.buckets) {
    for (int rank = 0; rank < runtime.mesh.shard; ++rank) {
      for (const ShardPiece& piece : saved_pieces(runtime, rank, bucket.id)) {
        index.parameters[bucket.parameters[piece.index]].pieces.push_back(
            {.rank = rank, .offset = piece.parameter_offset, .numel = piece.numel});
      }
    }
  }
  for (const auto& [name, buckets] : states) {
    for (const BucketId bucket : buckets) {
      for (const ParameterId parameter : runtime.plan.buckets[bucket].parameters) {
        index.parameters[parameter].states.push_back(name);
      }
    }
  }
  for (const auto& [name, counts] : runtime.counts) {
    for (std::size_t parameter = 0; parameter < counts.size(); ++parameter) {
      index.parameters[parameter].counts[name] = counts[parameter];
    }
  }
  return index;
}

std::int64_t RankContent::data_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& each : data) {
    bytes += static_cast<std::int64_t>(each.size());
  }
  return bytes;
}

TensorMetadata rank_metadata(std::uint64_t step, int rank) {
  return {{"format", "troupe checkpoint"},
          {"version", std::to_string(checkpoint_version)},
          {"step", std::to_string(step)},
          {"rank", std::to_string(rank)}};
}

RankContent rank_content(RuntimeImpl& runtime, const StateTable& states, std::string_view blob) {
  const int rank = runtime.context.rank();
  RankContent content;
  content.metadata = rank_metadata(runtime.steps, rank);
  const auto add = [&](BucketId bucket, std::span<const float> values, auto name_of) {
    for (const ShardPiece& piece : saved_pieces(runtime, rank, bucket)) {
      const ParameterId id = runtime.plan.buckets[bucket].parameters[piece.index];
      content.tensors.push_back({.name = name_of(runtime.model.parameters()[id].full_name),
                                 .type = TensorType::f32,
                                 .shape = {piece.numel}});
      content.data.push_back(std::as_bytes(values.subspan(
          static_cast<std::size_t>(piece.shard_offset), static_cast<std::size_t>(piece.numel))));
    }
  };
  for (const Bucket& bucket : runtime.plan.buckets) {
    std::span<const float> weights = runtime.main_weights(bucket.id, Stream::caller());
    if (runtime.weight_dtype(bucket.dtype) != DType::f32) {  // widened, one shard at a time
      weights = content.widened.emplace_back(weights.begin(), weights.end());
    }
    add(bucket.id, weights, weight_name);
  }
  for (const auto& [name, buckets] : states) {
    for (const BucketId bucket : buckets) {
      add(bucket, runtime.state(name, bucket),
          [&](const std::string& parameter) { return state_name(name, parameter); });
    }
  }
  content.tensors.push_back({.name = std::string(blob_name),
                             .type = TensorType::u8,
                             .shape = {static_cast<std::int64_t>(blob.size())}});
  content.data.push_back(std::as_bytes(std::span(blob)));
  return content;
}

Result<WrittenFile> write_rank_file(const Storage& storage,
                                    const std::filesystem::path& path,
                                    const RankContent& content) {
  auto header = safetensors_header(content.tensors, content.metadata);
  if (!header) {
    return header.failure();
  }
  auto created = OutputFile::create(storage, path);
  if (!created) {
    return created.failure();
  }
  OutputFile file = std::move(created).value();
  // Small tensors are written together: operations cost more than copies.
  constexpr std::size_t together = 1 << 20;
  std::vector<std::byte> room;
  room.reserve(together);
  const auto flush = [&]() -> Result<void> {
    auto written = room.empty() ? Result<void>() : file.write(std::span<const std::byte>(room));
    room.clear();
    return written;
  };
  const auto put = [&](std::span<const std::byte> bytes) -> Result<void> {
    if (room.size() + bytes.size() > together) {
      if (auto flushed = flush(); !flushed) {
        return flushed;
      }
    }
    if (bytes.size() > together) {
      return file.write(bytes);
    }
    room.insert(room.end(), bytes.begin(), bytes.end());
    return {};
  };
  if (auto done = put(std::as_bytes(std::span(header.value()))); !done) {
    return done.failure();
  }
  for (const auto& each : content.data) {
    if (auto done = put(each); !done) {
      return done.failure();
    }
  }
  if (auto done = flush(); !done) {
    return done.failure();
  }
  if (auto done = file.finish(); !done) {
    return done.failure();
  }
  return WrittenFile{.bytes = file.bytes(), .hash = file.hash()};
}

}  // namespace troupe
