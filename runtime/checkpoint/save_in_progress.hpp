/// A save between its beginning, which all ranks make together, and its commit, which they make
/// together too. In between each rank writes its file, in the call or on a thread.
#pragma once

#include "troupe/runtime/checkpoint.hpp"
#include "troupe/runtime/checkpoint/rank_content.hpp"

#include <atomic>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace troupe {

class SaveInProgress {
 public:
  /// Collective: decides what is saved, makes room in the folder. Throws the same `Error` on all
  /// ranks.
  SaveInProgress(RuntimeImpl& runtime,
                 const std::filesystem::path& folder,
                 const SaveOptions& options);
  ~SaveInProgress();
  SaveInProgress(const SaveInProgress&) = delete;
  SaveInProgress& operator=(const SaveInProgress&) = delete;

  /// Writes this rank's file now.
  void write();
  /// The runtime that finishes it; another one after `Runtime::set_trainable`.
  std::weak_ptr<RuntimeImpl> owner;
  /// Copies what is to be written and lets a thread write it.
  void start();
  /// Any thread.
  bool done() const;
  /// Well or not: nothing is left to be done.
  bool ended() const { return ended_; }
  std::int64_t snapshot_bytes() const;
  /// Collective: waits, and makes the checkpoint complete. Once it has ended, well or not, it does
  /// nothing but say so again.
  void commit(RuntimeImpl& runtime);
  /// Ends it here, if it has not ended. A thread that still writes is told to stop and waited for,
  /// 10 s at most; then it is left to itself: all that it uses is its own.
  void give_up(const char* why);

 private:
  /// What the thread uses.
  struct Work {
    Storage storage;
    std::filesystem::path file;
    std::string blob;
    RankContent content;
    std::vector<std::byte> snapshot;
    std::atomic<bool> stopped{false};
    std::promise<Result<WrittenFile>> promise;
    std::atomic<bool> done{false};

    /// Once.
    void end_with(Result<WrittenFile> result) {
      promise.set_value(std::move(result));
      done = true;
    }
  };

  Result<void> prepare() const;
  Result<void> complete(std::vector<IndexedFile> files);
  void delete_old() const;
  void commit_now(RuntimeImpl& runtime);
  Result<WrittenFile> await_writer(const RuntimeImpl& runtime);

  const std::filesystem::path folder_;
  const std::filesystem::path unfinished_;
  const std::filesystem::path finished_;
  const std::uint64_t step_;
  const int keep_;
  const int rank_;
  CheckpointIndex index_;  ///< read on rank 0
  std::shared_ptr<Work> work_;
  std::future<Result<WrittenFile>> written_;
  std::thread thread_;
  bool ended_ = false;
  std::optional<Failure> failure_;
};

}  // namespace troupe
