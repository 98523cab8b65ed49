// Loading: every file is checked by one rank, then every rank reads what its shards need.
#include "troupe/core/text.hpp"
#include "troupe/runtime/checkpoint.hpp"
#include "troupe/runtime/checkpoint/agreement.hpp"
#include "troupe/runtime/checkpoint/rank_content.hpp"
#include "troupe/runtime/checkpoint/save_in_progress.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <utility>

namespace troupe {

namespace {

namespace fs = std::filesystem;
using detail::concat;

Failure within(const fs::path& path, Failure failure) {
  failure.text = concat(path.string(), ": ", failure.text);
  return failure;
}

Failure damaged(const fs::path& path, const std::string& what) {
  return within(path, detail::failure(ErrorCode::storage, what));
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

/// The folder of the checkpoint that is meant.
Result<fs::path> find(const fs::path& folder) {
  std::error_code unknown;
  if (fs::exists(folder / index_name, unknown)) {
    return folder;
  }
  auto newest = find_newest(folder);
  if (!newest) {
    return newest.failure();
  }
  if (!newest.value()) {
    return damaged(folder, "there is no checkpoint in it (a folder step-… or an index.json)");
  }
  return *newest.value();
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

/// A rank's file, with what its header says.
struct RankFile {
  InputFile file;
  StoredTensors stored;
};

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

/// Checks a checkpoint and reads it into the shards of one rank.
class Loader {
 public:
  Loader(fs::path folder, CheckpointIndex index)
      : folder_(std::move(folder)), index_(std::move(index)) {}

  const CheckpointIndex& index() const { return index_; }
  const fs::path& folder() const { return folder_; }

  /// The file of a rank is the one that the index tells of, to the last byte. `blob` becomes its
  /// blob.
  Result<void> check_file(int rank, std::string& blob) const {
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

  /// Elements of one tensor of a parameter, of each rank's file what it has.
  Result<void> read(const IndexedParameter& parameter,
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

 private:
  /// Neither more nor less than the index says.
  Result<void> check_tensors(const fs::path& path, int rank, const StoredTensors& stored) const {
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
      return damaged(path,
                     concat("it has ", stored.tensors.size(), " tensors, expected ", expected));
    }
    return {};
  }

  fs::path folder_;
  CheckpointIndex index_;
  std::map<int, RankFile> files_;
};

/// What a rank found out before anything is changed.
struct Checked {
  std::optional<Loader> loader;
  std::map<int, std::string> blobs;  ///< of the files that this rank has checked
  Result<void> met;
};

Checked check(const RuntimeImpl& runtime, const fs::path& folder) {
  Checked checked;
  const auto run = [&]() -> Result<void> {
    auto index = read_index(folder);
    if (!index) {
      return index.failure();
    }
    checked.loader.emplace(folder, std::move(index).value());
    const CheckpointIndex& found = checked.loader->index();
    if (auto fits = check_model(found, runtime.model, runtime.mesh); !fits) {
      return within(folder, fits.failure());
    }
    for (int rank = runtime.context.rank(); rank < found.world_size;
         rank += runtime.context.size()) {
      if (auto whole = checked.loader->check_file(rank, checked.blobs[rank]); !whole) {
        return whole;
      }
    }
    return {};
  };
  try {
    checked.met = run();
  } catch (const std::exception& exception) {
    checked.met = damaged(folder, exception.what());
  }
  return checked;
}

/// The blobs of all saved ranks, from the ranks that have read them.
std::vector<std::string> exchange_blobs(RuntimeImpl& runtime,
                                        const std::map<int, std::string>& own,
                                        int world_size) {
  std::string message;
  for (const auto& [rank, blob] : own) {
    const std::uint64_t bytes = blob.size();
    message.append(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(blob);
  }
  const auto messages = runtime.exchange("of the blobs of a checkpoint", message);
  std::vector<std::string> blobs;
  std::vector<std::size_t> at(messages.size());
  for (int rank = 0; rank < world_size; ++rank) {
    const std::size_t peer = static_cast<std::size_t>(rank) % messages.size();
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, messages[peer].data() + at[peer], sizeof bytes);
    blobs.push_back(messages[peer].substr(at[peer] + sizeof bytes, bytes));
    at[peer] += sizeof bytes + bytes;
  }
  return blobs;
}

/// One bucket's weights and states, from the files into the shard.
Result<void> read_bucket(Runtime& runtime,
                         Loader& loader,
                         const std::vector<const IndexedParameter*>& indexed,
                         const ShardView& shard) {
  const RuntimeImpl& impl = runtime.impl();
  const Bucket& bucket = impl.plan.buckets[shard.bucket];
  const int coordinate = coordinate_of(impl.context.rank(), impl.mesh, bucket.group);
  std::set<std::string> states;
  for (const auto& [name, buffers] : impl.states) {
    if (buffers[shard.bucket].data() != nullptr) {
      states.insert(name);
    }
  }
  for (const ParameterId id : bucket.parameters) {
    states.insert(indexed[id]->states.begin(), indexed[id]->states.end());
  }
  for (const std::string& state : states) {
    std::ranges::fill(runtime.state(state, shard.bucket), 0.0F);
  }
  for (const ShardPiece& piece : shard.pieces) {
    const IndexedParameter& parameter = *indexed[bucket.parameters[piece.index]];
    const auto part = [&](std::span<float> values) {
      return values.subspan(static_cast<std::size_t>(piece.shard_offset),
                            static_cast<std::size_t>(piece.numel));
    };
    if (auto got = loader.read(parameter, weight_name(parameter.name), coordinate,
                               piece.parameter_offset, part(shard.weights));
        !got) {
      return got;
    }
    for (const std::string& state : parameter.states) {
      if (auto got = loader.read(parameter, state_name(state, parameter.name), coordinate,
                                 piece.parameter_offset, part(runtime.state(state, shard.bucket)));
          !got) {
        return got;
      }
    }
  }
  return {};
}

/// Errors are told when the update has ended: it ends well in any case.
Result<void> read_all(Runtime& runtime,
                      Loader& loader,
                      const std::vector<const IndexedParameter*>& indexed) {
  Result<void> met;
  Update update = runtime.update();
  for (BucketId bucket = 0; bucket < update.shard_count(); ++bucket) {
    const ShardView shard = update.shard(bucket);
    try {
      if (met) {
        met = read_bucket(runtime, loader, indexed, shard);
      }
    } catch (const Error& error) {
      met = error.failure();
    } catch (const std::exception& exception) {
      met = damaged(loader.folder(), exception.what());
    }
    update.finish(bucket);
  }
  return met;
}

void restore_counts(RuntimeImpl& runtime, const std::vector<const IndexedParameter*>& indexed) {
  for (auto& [name, counts] : runtime.counts) {
    std::ranges::fill(counts, 0);
  }
  for (std::size_t id = 0; id < indexed.size(); ++id) {
    for (const auto& [name, count] : indexed[id]->counts) {
      auto& counts = runtime.counts.try_emplace(name, indexed.size()).first->second;
      counts[id] = count;
    }
  }
}

}  // namespace

std::optional<fs::path> newest_checkpoint(const fs::path& folder) {
  return value_or_throw(find_newest(folder));
}

LoadedCheckpoint load(Runtime& runtime, const fs::path& folder) {
  RuntimeImpl& impl = runtime.impl();
  impl.settle("troupe::load");
  if (const auto last = std::exchange(impl.save, nullptr)) {
    try {
      last->commit(impl);
    } catch (const Error&) {
      impl.rank.throw_if_failed();  // else: what could not be saved is not loaded
    }
  }
  // Rank 0 says which; it would be another one if a save ended in between.
  const auto chosen = impl.context.rank() == 0 ? find(fs::absolute(folder)) : fs::path();
  const auto said =
      agree(impl, "of what is loaded", chosen ? chosen.value().filename().string() : std::string(),
            chosen ? Result<void>() : chosen.failure());
  const std::string name = said[0].get<std::string>();
  const fs::path own = fs::absolute(folder);
  Checked checked = check(impl, own.filename() == name ? own : own / name);
  agree(impl, "of files checked", {}, checked.met);
  Loader& loader = *checked.loader;
  const CheckpointIndex& index = loader.index();
  std::vector<const IndexedParameter*> indexed(impl.model.parameters().size());
  for (const IndexedParameter& parameter : index.parameters) {
    indexed[impl.model.parameter(parameter.name)] = &parameter;
  }
  LoadedCheckpoint loaded{.folder = loader.folder(),
                          .step = index.step,
                          .world_size = index.world_size,
                          .blobs = exchange_blobs(impl, checked.blobs, index.world_size)};
  Result<void> met = read_all(runtime, loader, indexed);
  if (!met) {
    Failure failure = met.failure();
    failure.text += "; parameters are partly loaded";
    met = failure;
  }
  agree(impl, "of what was loaded", {}, met);
  restore_counts(impl, indexed);
  impl.steps = index.step;
  impl.gradients_finished = false;
  return loaded;
}

}  // namespace troupe
