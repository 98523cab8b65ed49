/// Checkpoints: what a training needs to go on, in a folder that any number of ranks can load.
///
///     troupe::save(runtime, "run1", {.blob = my_state});      // after the optimizer's step
///     …
///     auto loaded = troupe::load(runtime, "run1");            // the newest one
///     my_state = loaded.blobs[…];
///
/// A checkpoint is a folder `step-000000123` with a safetensors file of each rank and an index in
/// JSON (docs/checkpoints.md has every byte). It holds the fp32 main weights, all optimizer state
/// and counts that the runtime has, the number of steps, and a blob of each rank. It is complete or
/// not there: everything is written into `step-000000123.tmp`, synced, and renamed last.
///
/// All calls but those marked are *collective*, and made between steps: no scope or update is open,
/// no micro-batch has begun since `finish_gradients`, and its update (or `skip_update`) is made,
/// which `load` and `export_full` do without; anything else is refused (misuse). All ranks reach
/// the same folder, by whatever path.
///
/// Errors: `Error`, the same one on every rank, whichever rank it happened on; the world goes on.
/// storage: the file system refused, or what is there is damaged, missing or foreign.
/// bad_configuration: it is of another model, or the call cannot be carried out as it was made.
#pragma once

#include "troupe/core/dtype.hpp"
#include "troupe/runtime/file_hook.hpp"
#include "troupe/runtime/runtime.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct SaveOptions {
  /// This rank's own: any bytes, given back by `load`. All ranks read those of all, so keep it
  /// small.
  std::string blob{};
  /// Complete checkpoints that stay in the folder, this one included; at least 1. Older ones are
  /// deleted when this one is complete. Rank 0's counts.
  int keep = 2;
  /// Called before each operation that changes a file; see FileHook.
  FileHook before{};
};

/// Saves this step, and deletes what older checkpoints are not kept, and what saves that were
/// killed have left. Returns when everything is on the medium. If it fails, earlier checkpoints are
/// as they were.
/// Errors: bad_configuration also if the folder has this step or a later one (of a run that went
/// another way).
void save(Runtime& runtime, const std::filesystem::path& folder, const SaveOptions& options = {});

class SaveInProgress;

/// A save that goes on while training does. It belongs to the runtime: if nobody finishes it, the
/// next save or load does; the runtime's end gives it up, and the last complete one stays.
class AsyncSave {
 public:
  /// Whether this rank's part is written, or has failed. Not collective; any thread.
  bool done() const;
  /// Waits for this rank's part and then for those of the others, and makes the checkpoint
  /// complete. Idempotent: a second time it says the same.
  /// Errors: as `save`'s; misuse after the end of the runtime.
  void finish();
  /// Host memory that the copy takes on this rank until the save is finished.
  std::int64_t snapshot_bytes() const;

 private:
  friend AsyncSave save_async(Runtime&, const std::filesystem::path&, const SaveOptions&);
  explicit AsyncSave(std::shared_ptr<SaveInProgress> save) : save_(std::move(save)) {}

  std::shared_ptr<SaveInProgress> save_;
};

/// Copies this rank's shards and returns; a thread writes them. The copy is of the main weights and
/// all states of this rank: with AdamW three times the bytes of its main weights. Finishes the save
/// before, if that is still to be done. `options.before` is called on that thread, too.
AsyncSave save_async(Runtime& runtime,
                     const std::filesystem::path& folder,
                     const SaveOptions& options = {});

struct LoadedCheckpoint {
  std::filesystem::path folder;    ///< of this checkpoint
  std::uint64_t step = 0;          ///< as `Runtime::steps()` is now
  int world_size = 0;              ///< of the world that saved it
  std::vector<std::string> blobs;  ///< per rank of that world
};

/// Loads a checkpoint: the newest one in `folder`, or `folder` itself if it is one. The world size,
/// strategy, mesh, buckets and alignment may be others than those it was saved with, all values are
/// the same bits. Each rank reads what its shards need; all files are checked against their
/// checksums before anything changes. States that the runtime has and the checkpoint has not become
/// zero; parameters that are frozen here get none, as `set_trainable` leaves them.
/// Errors: after a refusal the runtime is as it was. If a file can no longer be read although it
/// was checked, the error says that parameters are partly loaded.
LoadedCheckpoint load(Runtime& runtime, const std::filesystem::path& folder);

/// The newest complete checkpoint in a folder, or none. Not collective; any thread. Throws `Error`
/// (storage).
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& folder);

struct ExportOptions {
  /// Of all parameters in the file. Not set: each parameter's own.
  std::optional<DType> dtype{};
  /// As that of `SaveOptions`.
  FileHook before{};
};

/// Writes all parameters, whole, under their full names into one safetensors file, as Python's
/// safetensors and others read it; of experts those of each coordinate, "name.ep0", "name.ep1", …,
/// if there are several. Rank 0 writes; no rank holds more than one bucket of it at a time. A file
/// of that name is replaced when the new one is complete.
void export_full(Runtime& runtime,
                 const std::filesystem::path& file,
                 const ExportOptions& options = {});

}  // namespace troupe
