/// The index of a checkpoint: which parameters it has, which rank's file holds which part of each,
/// and how every file has to be. Values, and their form as JSON. Pure.
///
/// The ranks of a saved world are numbered as in core/mesh.hpp. Of several copies of the model
/// (HSDP) only the first has parameters in its files. An expert parameter has other values for each
/// *coordinate*, 0 to mesh.ep − 1; a rank's coordinate is its place in the copy modulo mesh.ep.
#pragma once

#include "troupe/core/mesh.hpp"
#include "troupe/core/model.hpp"
#include "troupe/core/strategy.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Elements [offset, offset + numel) of a parameter, in the file of a rank.
struct IndexedPiece {
  int rank = 0;
  std::int64_t offset = 0;
  std::int64_t numel = 0;  ///< > 0
  bool operator==(const IndexedPiece&) const = default;
};

struct IndexedParameter {
  std::string name;  ///< full name
  Shape shape;
  DType dtype = DType::f32;  ///< gathered; what is saved is fp32
  bool trainable = true;
  std::string group;
  std::vector<IndexedPiece> pieces;  ///< by rank
  std::vector<std::string> states;   ///< of the optimizer, that it has; sorted
  std::map<std::string, std::uint64_t> counts;
  bool operator==(const IndexedParameter&) const = default;
};

struct IndexedFile {
  std::int64_t bytes = 0;
  std::uint64_t hash = 0;  ///< XXH3, 64 bit
  bool operator==(const IndexedFile&) const = default;
};

struct CheckpointIndex {
  std::uint64_t step = 0;
  int world_size = 1;
  DeviceMesh mesh;  ///< resolved
  Strategy strategy = Strategy::full_shard;
  std::vector<IndexedParameter> parameters;  ///< in the order of the model
  std::vector<IndexedFile> files;            ///< per rank
  bool operator==(const CheckpointIndex&) const = default;
};

inline constexpr std::string_view index_name = "index.json";
/// Largest index that is read.
inline constexpr std::int64_t index_bytes_max = std::int64_t{1} << 30;
inline constexpr int checkpoint_version = 1;

// Names.

/// "step-000000123"
std::string step_name(std::uint64_t step);
/// Of a folder that is no checkpoint yet, or no longer.
inline constexpr std::string_view unfinished_suffix = ".tmp";
/// The step of a name made by `step_name`, with that suffix or without; none for any other name.
struct StepFolder {
  std::uint64_t step = 0;
  bool finished = true;
};
std::optional<StepFolder> parse_step_name(std::string_view name);
/// "rank-00002.safetensors"
std::string rank_file_name(int rank);
/// Tensors of a rank's file.
std::string weight_name(std::string_view parameter);
std::string state_name(std::string_view state, std::string_view parameter);
inline constexpr std::string_view blob_name = "blob";

// Places.

/// 0 for a parameter of all ranks.
int coordinate_of(int rank, const DeviceMesh& mesh, std::string_view group);

/// A part of a piece that covers a part of the elements asked for.
struct Overlap {
  int rank = 0;
  std::int64_t piece_offset = 0;  ///< of the first element within the piece
  std::int64_t numel = 0;
  std::int64_t wanted_offset = 0;  ///< of the first element within what was asked for
};
/// Where elements [offset, offset + numel) of a parameter lie, those of a coordinate.
std::vector<Overlap> locate(const CheckpointIndex& index,
                            const IndexedParameter& parameter,
                            int coordinate,
                            std::int64_t offset,
                            std::int64_t numel);

// As JSON. The text has a checksum of its own.

/// Errors: a name that is no UTF-8.
Result<std::string> to_json(const CheckpointIndex& index);
/// Errors (storage): what is damaged; another version; pieces that do not make up their parameter.
Result<CheckpointIndex> parse_index(std::string_view text);

/// Whether a model can be loaded from it. Errors (bad_configuration): a parameter that is missing
/// on either side, or of another shape or group; experts divided in another way.
Result<void> check_model(const CheckpointIndex& index, const Model& model, const DeviceMesh& mesh);

}  // namespace troupe
