/// The state of a world as its log tells it: every process applies the same entries in the same
/// order to a copy of its own, so that all come to the same conclusions. Nothing else goes in.
///
/// Thread rules: one at a time, other than `meetings()`: any.
#pragma once

#include "troupe/comm/process/world_event.hpp"
#include "troupe/comm/rendezvous.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class WorldHistory {
 public:
  explicit WorldHistory(int world_size);

  /// The next entry. One that cannot be read ends the world for good.
  void apply(std::string_view entry);
  std::uint64_t applied() const { return applied_; }

  /// Whether all ranks have come; else, who has not.
  bool all_joined() const { return joined_.size() == static_cast<std::size_t>(world_size_); }
  std::vector<int> not_joined() const;
  /// Whether `process` is that rank.
  bool is_member(int rank, std::uint64_t process) const;
  /// Why `process` is none of the world: there is none, or it was complete when that one came. Such
  /// a process has no part in the world, and its death is nobody's.
  std::optional<Failure> refusal(std::uint64_t process) const;
  /// The first failure of an epoch, or that of the world for good. Of epoch 0: why it has not come
  /// about.
  std::optional<Failure> failure(std::uint64_t epoch) const;
  bool ended() const { return ended_.has_value(); }  ///< for good
  /// What ranks have seen go wrong in an epoch before it failed: of each rank the first.
  const std::vector<Suspicion>& suspicions(std::uint64_t epoch) const;
  /// Ranks that the store has given up, and why; but for those that had departed.
  const std::map<int, std::string>& died() const { return died_; }
  const std::map<int, DepartedEvent>& departed() const { return departed_; }
  /// Whether nobody has anything to do any more.
  bool all_departed() const;

  /// Whether something has gone wrong in `epoch` and nobody has said yet what.
  bool undecided(std::uint64_t epoch) const;
  /// Who finds out: the rank of the first suspicion, if it lives, or else the lowest that does.
  int decider(std::uint64_t epoch) const;
  int lowest_living() const;
  /// Ranks that have come and have not died.
  std::vector<int> living() const;

  LocalRendezvous& meetings() { return meetings_; }
  const LocalRendezvous& meetings() const { return meetings_; }

 private:
  bool is_rank(int rank) const { return rank >= 0 && rank < world_size_; }
  void fail(std::uint64_t epoch, Failure failure);
  void refuse(const JoinedEvent& event, std::string text);

  // Each returns false for an entry that makes no sense.
  bool on(const JoinedEvent& event);
  bool on(const FailedEvent& event);
  bool on(const SuspectedEvent& event);
  bool on(const DepartedEvent& event);
  bool on(const DiedEvent& event);
  bool on(const ArrivedEvent& event);
  bool on(const AbsentEvent& event);
  bool on(const ClosedEvent& event);
  bool on(const EndedEvent& event);

  const int world_size_;
  std::uint64_t applied_ = 0;
  std::map<int, JoinedEvent> joined_;
  std::map<std::uint64_t, Failure> refused_;  ///< by process
  std::map<std::uint64_t, Failure> failures_;
  std::map<std::uint64_t, std::vector<Suspicion>> suspicions_;
  std::map<int, std::string> died_;
  std::map<int, DepartedEvent> departed_;
  std::optional<Failure> ended_;
  LocalRendezvous meetings_;
};

}  // namespace troupe
