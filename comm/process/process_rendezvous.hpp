/// The meetings of ranks that are processes: entries of the world's log.
///
/// Counts of updates are not: each rank keeps its own in a key of the store, and who asks for those
/// of others looks there, now and then.
#pragma once

#include "troupe/comm/process/world_log.hpp"
#include "troupe/comm/rendezvous.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace troupe {

class ProcessRendezvous final : public Rendezvous {
 public:
  /// `lost`: why nobody can be met any more, if so. The log outlives this.
  ProcessRendezvous(WorldLog& log,
                    int rank,
                    int world_size,
                    std::function<Failure(const std::string&)> lost);

  void arrive(int rank,
              std::uint64_t meeting,
              std::string word,
              std::shared_ptr<Wakeable> waiter) override;
  void leave(int rank, std::string text) override;
  bool over(std::uint64_t meeting) const override;
  Absence absent(std::uint64_t meeting) const override;
  Result<Words> close(std::uint64_t meeting, const Failure& failure) override;
  void note_updates(int rank, std::uint64_t count) override;
  bool all_have_made(std::uint64_t count) override;

  /// Something has changed: who waits looks again. Any thread; does not block.
  void notify();

 private:
  void tell_updates();
  bool ask_for_updates();

  WorldLog& log_;
  const int rank_;
  const std::function<Failure(const std::string&)> lost_;

  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<Wakeable> waiter_;
  std::uint64_t own_updates_ = 0;
  bool telling_ = false;
  std::uint64_t asked_for_ = 0;
  TimePoint asked_at_{};
  bool asking_ = false;
  std::vector<std::uint64_t> updates_;  ///< by rank, as far as heard
};

}  // namespace troupe
