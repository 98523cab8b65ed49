/// Reads the files of a checkpoint; nothing in them is trusted. Errors: `Failure` (storage) that
/// names the file and what was expected.
#pragma once

#include "troupe/runtime/checkpoint/index.hpp"
#include "troupe/runtime/checkpoint/safetensors.hpp"
#include "troupe/runtime/checkpoint/storage.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace troupe {

/// The same failure, with the path in front.
Failure within(const std::filesystem::path& path, Failure failure);

/// The complete checkpoint with the highest step.
Result<std::optional<std::filesystem::path>> find_newest(const std::filesystem::path& folder);
/// `folder` itself, if it is a checkpoint, else the newest in it.
Result<std::filesystem::path> find_checkpoint(const std::filesystem::path& folder);
Result<CheckpointIndex> read_index(const std::filesystem::path& folder);

/// A rank's file, with what its header says.
struct RankFile {
  InputFile file;
  StoredTensors stored;
};

/// Checks a checkpoint and reads parts of it. One thread.
class CheckpointReader {
 public:
  CheckpointReader(std::filesystem::path folder, CheckpointIndex index)
      : folder_(std::move(folder)), index_(std::move(index)) {}

  const CheckpointIndex& index() const { return index_; }
  const std::filesystem::path& folder() const { return folder_; }

  /// The file of a rank is the one that the index tells of, to the last byte. `blob` becomes its
  /// blob.
  Result<void> check_file(int rank, std::string& blob) const;
  /// Elements of one tensor of a parameter from `offset` on, of each rank's file what it has.
  Result<void> read(const IndexedParameter& parameter,
                    const std::string& tensor,
                    int coordinate,
                    std::int64_t offset,
                    std::span<float> to);

 private:
  /// Neither more nor less than the index says.
  Result<void> check_tensors(const std::filesystem::path& path,
                             int rank,
                             const StoredTensors& stored) const;

  std::filesystem::path folder_;
  CheckpointIndex index_;
  std::map<int, RankFile> files_;  ///< opened so far
};

}  // namespace troupe
