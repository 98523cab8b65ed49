/// Where the ranks of a world meet outside of its communicators, to go on after a failure: an
/// all-gather of short texts, meeting after meeting.
///
/// Meetings are numbered from 1, and every rank comes to each. A meeting is over when all ranks
/// have come, or when it was closed, for instance since one did not come in time; then no later
/// one takes place. Whatever the order of events, all ranks learn the same outcome.
///
/// Thread rules: any thread.
#pragma once

#include "troupe/comm/waiting.hpp"
#include "troupe/core/error.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

class Rendezvous {
 public:
  /// What the ranks have said at a meeting, by rank.
  using Words = std::vector<std::string>;
  /// Who has not come, and who of them never will.
  struct Absence {
    std::vector<int> ranks;
    std::map<int, std::string> left;  ///< why, by rank
  };

  Rendezvous() = default;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  virtual ~Rendezvous() = default;

  // Between processes (comm/process) these take effect a little later, and `rank` is the own one.
  // Only `close` blocks there, for a bounded time.

  /// Rank `rank` comes and says `word`. `waiter` is notified when the meeting may be over.
  virtual void arrive(int rank,
                      std::uint64_t meeting,
                      std::string word,
                      std::shared_ptr<Wakeable> waiter) = 0;
  /// Rank `rank` comes to no meeting any more; `text` says why.
  virtual void leave(int rank, std::string text) = 0;
  /// Whether nothing is to be waited for: all have come, it was closed, or somebody will not come.
  virtual bool over(std::uint64_t meeting) const = 0;
  virtual Absence absent(std::uint64_t meeting) const = 0;
  /// The words of a meeting to which all have come; else it is closed with `failure`, unless it was
  /// closed before with another one, which is the outcome then.
  virtual Result<Words> close(std::uint64_t meeting, const Failure& failure) = 0;

  // Between meetings: how many updates each rank has made. Nobody is notified of these.

  virtual void note_updates(int rank, std::uint64_t count) = 0;
  /// Whether every rank that has not left has made `count` updates.
  virtual bool all_have_made(std::uint64_t count) = 0;
};

/// Of ranks in one process. Nothing in it blocks.
class LocalRendezvous final : public Rendezvous {
 public:
  explicit LocalRendezvous(int world_size)
      : world_size_(world_size), updates_(static_cast<std::size_t>(world_size)) {}

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

  /// What `close` would return, if that is settled: all have come, or it was closed.
  std::optional<Result<Words>> outcome(std::uint64_t meeting) const;

 private:
  struct Meeting {
    std::vector<std::optional<std::string>> words;  ///< by rank
    std::size_t present = 0;
    std::vector<std::shared_ptr<Wakeable>> waiters;
  };

  bool complete(std::uint64_t meeting) const;
  std::optional<Result<Words>> settled(std::uint64_t meeting) const;
  Meeting& at(std::uint64_t meeting);

  const int world_size_;
  mutable std::mutex mutex_;                   // guards what follows
  std::map<std::uint64_t, Meeting> meetings_;  // the one that ranks come to, and the one before it
  std::map<int, std::string> gone_;
  std::optional<Failure> closed_;
  std::vector<std::uint64_t> updates_;  ///< by rank
};

}  // namespace troupe
