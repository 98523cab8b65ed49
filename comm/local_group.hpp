/// Where the ranks of one group meet, collective by collective, on one channel. Internal to the
/// local communicator.
///
/// The members go through the same collectives in lockstep: collective number n of every member is
/// `turn` n. What a member has done in the current turn is its `Stage`:
///
///     absent    has not come                      -> arrived, once its stream gets there
///     arrived   its call may be read by all       -> halfway or left, when all are here and agree
///     halfway   first round done (all_reduce)     -> left, when all are halfway
///     left      reads no buffer any more          when all have left, the turn is over, all are
///     absent
///
/// The last to arrive may do the parts of all (`begin_moving_all`): then nobody else advances, and
/// all leave at once.
///
/// Payload is moved without the lock, by members that count as readers meanwhile. Once a failure is
/// set no member becomes a reader, and no collective ends before the last reader is out; so
/// nobody's buffer is read after its collective has ended, whichever way.
///
/// Thread rules: any thread. `failure` is set under the lock, by one who has reported it to the
/// world.
#pragma once

#include "troupe/comm/communicator.hpp"
#include "troupe/comm/wake_list.hpp"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

enum class Stage : std::uint8_t { absent, arrived, halfway, left };

class LocalGroup {
 public:
  explicit LocalGroup(std::vector<int> ranks);

  int size() const { return static_cast<int>(ranks_.size()); }
  std::span<const int> ranks() const { return ranks_; }
  int world_rank(int member) const { return ranks_[static_cast<std::size_t>(member)]; }
  /// The position of a world rank, -1 if it is no member.
  int member_of(int world_rank) const;

  std::mutex& mutex() { return mutex_; }
  WakeList& listeners() { return listeners_; }

  // All below: with the mutex held.

  /// The number of the next collective that `member` launches.
  std::uint64_t launch(int member);
  std::uint64_t turn() const { return turn_; }
  const std::optional<Failure>& failure() const { return failure_; }
  int readers() const { return readers_; }
  Stage stage(int member) const { return members_[static_cast<std::size_t>(member)].stage; }
  /// Whether all have come as far as `stage`.
  bool all_at(Stage stage) const;

  /// `member` brings its call. Returns what is wrong now: a member that has left the world is
  /// awaited, or all are here and disagree.
  std::optional<Failure> arrive(int member, const CollectiveCall& call);
  /// `member` has come to `stage`; the last one to leave opens the next turn.
  void advance(int member, Stage stage);
  /// Calls of all members. While all have arrived, they may be read without the lock by a reader.
  std::span<const CollectiveCall> calls() const { return calls_; }
  void begin_reading() { ++readers_; }
  /// One member, a reader like any other, moves everybody's payload.
  void begin_moving_all() {
    begin_reading();
    moving_all_ = true;
  }
  bool moving_all() const { return moving_all_; }
  /// All leave; the next turn is open.
  void end_moving_all();
  /// True if a failed collective waited for this reader.
  bool end_reading();
  /// The first failure stays. True if this one was it.
  bool fail(const Failure& failure);
  /// Takes part in nothing any more. Returns a failure if a collective waits for it.
  std::optional<Failure> leave(int member, const std::string& text);
  /// `member` has waited for `waited` at its stage.
  Failure timed_out(int member, Duration waited) const;

  /// Without the mutex: returns when no reader is left. A failure is set.
  void await_readers();

 private:
  struct Member {
    Stage stage = Stage::absent;
    std::uint64_t launched = 0;
    std::optional<std::string> gone;  ///< why it takes part in nothing any more
  };

  void next_turn();
  std::optional<Failure> somebody_gone() const;
  std::string absence_of(std::size_t member) const;

  const std::vector<int> ranks_;
  WakeList listeners_;
  std::mutex mutex_;
  std::condition_variable readers_gone_;

  // Guarded by mutex_.
  std::uint64_t turn_ = 0;
  std::vector<Member> members_;
  std::vector<CollectiveCall> calls_;
  int readers_ = 0;
  bool moving_all_ = false;
  std::optional<Failure> failure_;
};

}  // namespace troupe
