#include "troupe/runtime/checkpoint/reader.hpp"

#include "troupe/core/text.hpp"
#include "troupe/runtime/checkpoint/rank_content.hpp"

#include <algorithm>
#include <system_error>

namespace troupe {

namespace {

namespace fs = std::filesystem;
using detail::concat;

Failure damaged(const fs::path& path, const std::string& what) {
  return within(path, detail::failure(ErrorCode::storage, what));
}

Result<RankFile> open_rank_file(const fs::path& path, std::int64_t bytes) {
  auto opened = InputFile::open(path);
  if (!opened) {
    return opened.failure();
  }
  InputFile file = std::move(opened).value();
  if (file.bytes() != bytes) {
    return damaged(path, concat("it has ", file.bytes(), " bytes, expected ", bytes));
  }
  std::string length(std::min<std::size_t>(8, static_cast<std::size_t>(bytes)), '\0');
  if (auto got = file.read(0, std::as_writable_bytes(std::span(length))); !got) {
    return got.failure();
  }
  const auto header_bytes = safetensors_header_bytes(length, bytes);
  if (!header_bytes) {
    return within(path, header_bytes.failure());
  }
  std::string header(static_cast<std::size_t>(header_bytes.value()), '\0');
  if (auto got = file.read(8, std::as_writable_bytes(std::span(header))); !got) {
    return got.failure();
  }
  auto stored = parse_safetensors_header(header, bytes);
  if (!stored) {
    return within(path, stored.failure());
  }
  return RankFile{std::move(file), std::move(stored).value()};
}

}  // namespace

Failure within(const fs::path& path, Failure failure) {
  failure.text = concat(path.string(), ": ", failure.text);
  return failure;
}

Result<std::optional<fs::path>> find_newest(const fs::path& folder) {
  const auto names = Storage().list(folder);
  if (!names) {
    return names.failure();
  }
  std::optional<StepFolder> newest;
  for (const std::string& name : names.value()) {
    const auto step = parse_step_name(name);
    if (step && step->finished && (!newest || newest->step < step->step)) {
      newest = step;
    }
  }
  return newest ? std::optional(folder / step_name(newest->step)) : std::nullopt;
}

Result<fs::path> find_checkpoint(const fs::path& folder) {
  std::error_code unknown;
  if (fs::exists(folder / index_name, unknown)) {
    return folder;
  }
  auto newest = find_newest(folder);
  if (!newest) {
    return newest.failure();
  }
  const std::optional<fs::path> found = std::move(newest).value();
  if (!found) {
    return damaged(folder, "there is no checkpoint in it (a folder step-… or an index.json)");
  }
  return *found;
}

Result<CheckpointIndex> read_index(const fs::path& folder) {
  const fs::path path = folder / index_name;
  const auto text = read_text(path, index_bytes_max);
  if (!text) {
    return text.failure();
  }
  auto index = parse_index(text.value());
  return index ? std::move(index) : within(path, index.failure());
}

Result<void> CheckpointReader::check_file(int rank, std::string& blob) const {
  const fs::path path = folder_ / rank_file_name(rank);
  const IndexedFile& expected = index_.files[static_cast<std::size_t>(rank)];
  const auto opened = open_rank_file(path, expected.bytes);
  if (!opened) {
    return opened.failure();
  }
  const RankFile& file = opened.value();
  for (const auto& [key, value] : rank_metadata(index_.step, rank)) {
    const auto found = file.stored.metadata.find(key);
    if (found == file.stored.metadata.end() || found->second != value) {
      return damaged(path, concat("its ", key, " is '",
                                  found == file.stored.metadata.end() ? "" : found->second,
                                  "', expected '", value, "'"));
    }
  }
  if (auto tensors = check_tensors(path, rank, file.stored); !tensors) {
    return tensors;
  }
  const auto hash = file.file.hash();
  if (!hash) {
    return hash.failure();
  }
  if (hash.value() != expected.hash) {
    return damaged(path, "its checksum is another than the index says: it is damaged");
  }
  const StoredTensor& stored = file.stored.tensors.at(std::string(blob_name));
  blob.assign(static_cast<std::size_t>(stored.numel), '\0');
  return file.file.read(stored.offset, std::as_writable_bytes(std::span(blob)));
}

Result<void> CheckpointReader::read(const IndexedParameter& parameter,
                                    const std::string& tensor,
                                    int coordinate,
                                    std::int64_t offset,
                                    std::span<float> to) {
  for (const Overlap& part :
       locate(index_, parameter, coordinate, offset, static_cast<std::int64_t>(to.size()))) {
    auto found = files_.find(part.rank);
    if (found == files_.end()) {
      auto opened = open_rank_file(folder_ / rank_file_name(part.rank),
                                   index_.files[static_cast<std::size_t>(part.rank)].bytes);
      if (!opened) {
        return opened.failure();
      }
      found = files_.emplace(part.rank, std::move(opened).value()).first;
    }
    const RankFile& file = found->second;
    const auto stored = file.stored.tensors.find(tensor);
    if (stored == file.stored.tensors.end()) {
      return damaged(file.file.path(), "tensor '" + tensor + "' is missing");
    }
    constexpr auto fp32 = static_cast<std::int64_t>(sizeof(float));
    const auto wanted = to.subspan(static_cast<std::size_t>(part.wanted_offset),
                                   static_cast<std::size_t>(part.numel));
    if (auto got = file.file.read(stored->second.offset + part.piece_offset * fp32,
                                  std::as_writable_bytes(wanted));
        !got) {
      return got;
    }
  }
  return {};
}

Result<void> CheckpointReader::check_tensors(const fs::path& path,
                                             int rank,
                                             const StoredTensors& stored) const {
  std::size_t expected = 1;
  for (const IndexedParameter& parameter : index_.parameters) {
    for (const IndexedPiece& piece : parameter.pieces) {
      if (piece.rank != rank) {
        continue;
      }
      std::vector<std::string> names{weight_name(parameter.name)};
      for (const std::string& state : parameter.states) {
        names.push_back(state_name(state, parameter.name));
      }
      for (const std::string& name : names) {
        const auto found = stored.tensors.find(name);
        if (found == stored.tensors.end()) {
          return damaged(path, "tensor '" + name + "' is missing");
        }
        const StoredTensor& tensor = found->second;
        if (tensor.type != TensorType::f32 || tensor.shape != Shape{piece.numel}) {
          return damaged(path, concat("tensor '", name, "' has ", tensor.numel,
                                      " elements, expected ", piece.numel, " of F32"));
        }
      }
      expected += names.size();
    }
  }
  const auto blob = stored.tensors.find(blob_name);
  if (blob == stored.tensors.end() || blob->second.type != TensorType::u8) {
    return damaged(path, concat("tensor '", blob_name, "' of U8 is missing"));
  }
  if (stored.tensors.size() != expected) {
    return damaged(path, concat("it has ", stored.tensors.size(), " tensors, expected ", expected));
  }
  return {};
}

}  // namespace troupe
