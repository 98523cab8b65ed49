/// What a rank's file of a checkpoint holds, and the index that tells of it.
#pragma once

#include "troupe/core/bucket_layout.hpp"
#include "troupe/runtime/checkpoint/index.hpp"
#include "troupe/runtime/checkpoint/safetensors.hpp"
#include "troupe/runtime/checkpoint/storage.hpp"

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace troupe {

class RuntimeImpl;

/// Optimizer states by name: the buckets, ascending, that have it on some rank.
using StateTable = std::map<std::string, std::vector<BucketId>, std::less<>>;

/// Those of this rank alone.
StateTable states_of(const RuntimeImpl& runtime);

/// Pieces of parameters in the shard of a rank that saves; empty for replicas but the first.
std::vector<ShardPiece> saved_pieces(const RuntimeImpl& runtime, int rank, BucketId bucket);

/// Without `files`.
CheckpointIndex make_index(const RuntimeImpl& runtime, const StateTable& states);

/// Tensors and where their bytes are.
struct RankContent {
  std::vector<TensorSpec> tensors;
  std::vector<std::span<const std::byte>> data;
  TensorMetadata metadata;
  std::vector<std::vector<float>>
      widened;  ///< main weights that are stored in bf16; `data` is there

  std::int64_t data_bytes() const;
};

/// Of this rank, in the runtime's memory. States that are in the table and not there yet are made.
/// blob  outlives it
RankContent rank_content(RuntimeImpl& runtime, const StateTable& states, std::string_view blob);

/// In every rank's file.
TensorMetadata rank_metadata(std::uint64_t step, int rank);

struct WrittenFile {
  std::int64_t bytes = 0;
  std::uint64_t hash = 0;
};
Result<WrittenFile> write_rank_file(const Storage& storage,
                                    const std::filesystem::path& path,
                                    const RankContent& content);

}  // namespace troupe
