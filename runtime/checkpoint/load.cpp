// Loading: every file is checked by one rank, then every rank reads what its shards need.
#include "troupe/core/text.hpp"
#include "troupe/runtime/checkpoint.hpp"
#include "troupe/runtime/checkpoint/agreement.hpp"
#include "troupe/runtime/checkpoint/reader.hpp"
#include "troupe/runtime/checkpoint/save_in_progress.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>

namespace troupe {

namespace {

namespace fs = std::filesystem;

Failure damaged(const fs::path& path, const std::string& what) {
  return within(path, detail::failure(ErrorCode::storage, what));
}

/// Tells one checkpoint from another.
Json identity_of(const CheckpointIndex& index) {
  Json files = Json::array();
  for (const IndexedFile& file : index.files) {
    files.push_back({file.bytes, file.hash});
  }
  return {{"step", index.step}, {"files", std::move(files)}};
}

/// The name of its folder, also where a symbolic link leads to it.
std::string real_name(const fs::path& checkpoint) {
  std::error_code unknown;
  const fs::path real = fs::canonical(checkpoint, unknown);
  return (unknown ? checkpoint : real).filename().string();
}

/// What a rank found out before anything is changed.
struct Checked {
  std::unique_ptr<CheckpointReader> reader;
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
    checked.reader = std::make_unique<CheckpointReader>(folder, std::move(index).value());
    const CheckpointIndex& found = checked.reader->index();
    if (auto fits = check_model(found, runtime.model, runtime.mesh); !fits) {
      return within(folder, fits.failure());
    }
    for (int rank = runtime.context.rank(); rank < found.world_size;
         rank += runtime.context.size()) {
      if (auto whole = checked.reader->check_file(rank, checked.blobs[rank]); !whole) {
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
                         CheckpointReader& reader,
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
    if (bucket.trainable) {
      states.insert(indexed[id]->states.begin(), indexed[id]->states.end());
    }
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
    if (auto got = reader.read(parameter, weight_name(parameter.name), coordinate,
                               piece.parameter_offset, part(shard.weights));
        !got) {
      return got;
    }
    if (!bucket.trainable) {
      continue;  // what is frozen has no state
    }
    for (const std::string& state : parameter.states) {
      if (auto got = reader.read(parameter, state_name(state, parameter.name), coordinate,
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
                      CheckpointReader& reader,
                      const std::vector<const IndexedParameter*>& indexed) {
  Result<void> met;
  Update update = runtime.update();
  for (BucketId bucket = 0; bucket < update.shard_count(); ++bucket) {
    const ShardView shard = update.shard(bucket);
    try {
      if (met) {
        met = read_bucket(runtime, reader, indexed, shard);
      }
    } catch (const Error& error) {
      met = error.failure();
    } catch (const std::exception& exception) {
      met = damaged(reader.folder(), exception.what());
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
      counts[id] = runtime.model.parameters()[id].spec.trainable ? count : 0;
    }
  }
}

}  // namespace

std::optional<fs::path> newest_checkpoint(const fs::path& folder) {
  return value_or_throw(find_newest(folder));
}

LoadedCheckpoint load(Runtime& runtime, const fs::path& folder) {
  RuntimeImpl& impl = runtime.impl();
  impl.require_between_steps("troupe::load", true);
  if (const auto last = std::exchange(impl.save, nullptr)) {
    try {
      last->commit(impl);
    } catch (const Error&) {
      impl.rank.throw_if_failed();  // else: what could not be saved is not loaded
    }
  }
  // Rank 0 says which; it would be another one if a save ended in between.
  const auto own = absolute_path(folder);
  const auto chosen = own && impl.context.rank() == 0 ? find_checkpoint(own.value()) : own;
  const auto said = agree(impl, "of what is loaded", chosen ? real_name(chosen.value()) : "",
                          chosen ? Result<void>() : chosen.failure());
  std::error_code unknown;
  const bool itself = fs::exists(own.value() / index_name, unknown);
  Checked checked = check(impl, itself ? own.value() : own.value() / said[0].get<std::string>());
  const auto found =
      agree(impl, "of files checked", checked.met ? identity_of(checked.reader->index()) : Json(),
            checked.met);
  if (const auto other =
          std::ranges::find_if(found, [&](const Json& each) { return each != found.front(); });
      other != found.end()) {
    const auto rank = static_cast<int>(other - found.begin());
    throw Error({.code = ErrorCode::bad_configuration,
                 .text = "rank " + std::to_string(rank) +
                         " was given another checkpoint than rank 0; all ranks load the same one",
                 .rank = rank});
  }
  CheckpointReader& reader = *checked.reader;
  const CheckpointIndex& index = reader.index();
  std::vector<const IndexedParameter*> indexed(impl.model.parameters().size());
  for (const IndexedParameter& parameter : index.parameters) {
    indexed[impl.model.parameter(parameter.name)] = &parameter;
  }
  LoadedCheckpoint loaded{.folder = reader.folder(),
                          .step = index.step,
                          .world_size = index.world_size,
                          .blobs = exchange_blobs(impl, checked.blobs, index.world_size)};
  Result<void> met = read_all(runtime, reader, indexed);
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
