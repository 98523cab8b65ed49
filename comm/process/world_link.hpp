/// What a communicator between processes tells its world, and hears from it.
///
/// A communicator cannot tell by itself whether a peer that does not answer is late, launches
/// something else, or is dead. It tells the world what it sees (`suspect`), and the world finds
/// out: it asks all ranks how far they are (process_world.hpp).
#pragma once

#include "troupe/comm/process/launch_log.hpp"
#include "troupe/core/error.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace troupe {

/// What a rank has seen go wrong in a collective.
struct Suspicion {
  enum class Kind : std::uint8_t {
    mismatch,    ///< a peer has brought another call
    timeout,     ///< the collective's deadline has passed
    connection,  ///< a connection was lost, or could not be made
    dropped,     ///< the own stream failed or was stopped before the collective was done
  };
  Kind kind = Kind::timeout;
  int rank = 0;  ///< world rank of who suspects
  GroupName group{};
  std::uint64_t turn = 0;
  LoggedCall call{};
  std::int64_t waited_ms = 0;
  std::string text{};  ///< what the library below says, or why the stream failed
  int peer = -1;       ///< world rank of the peer that it was seen at, if known

  bool operator==(const Suspicion&) const = default;
};

/// A communicator, as its world sees it.
class WatchedGroup {
 public:
  WatchedGroup() = default;
  WatchedGroup(const WatchedGroup&) = delete;
  WatchedGroup& operator=(const WatchedGroup&) = delete;
  virtual ~WatchedGroup() = default;
  /// The world has failed (`WorldLink::failure`): ends what waits in a collective, soon. Any
  /// thread; does not block.
  virtual void interrupt() = 0;
  virtual const LaunchLog& log() const = 0;
};

class WorldLink {
 public:
  WorldLink() = default;
  WorldLink(const WorldLink&) = delete;
  WorldLink& operator=(const WorldLink&) = delete;
  virtual ~WorldLink() = default;

  // All: any thread.

  virtual int rank() const = 0;  ///< world rank
  /// The world's first failure. Takes no lock as long as there is none.
  virtual std::optional<Failure> failure() const = 0;
  /// Returns the world's failure, of which this is the reason or not; within bounded time.
  virtual Failure suspect(Suspicion suspicion) = 0;
  /// Ends all collectives of the world with `failure`, or with an earlier one. Does not block.
  virtual void abort(const Failure& failure) = 0;
  /// A collective begins to wait for its peers: if one of them has left the world without having
  /// launched it, the world's failure.
  virtual std::optional<Failure> begins(const GroupName& group, const LoggedLaunch& launch) = 0;
  /// From now on the group hears of failures; if there is one already, at once.
  virtual void watch(WatchedGroup& group) = 0;
  /// Returns when the group hears no more.
  virtual void forget(WatchedGroup& group) = 0;
};

/// Makes the communicators of a world of processes: what moves the bytes.
class GroupTransport {
 public:
  GroupTransport() = default;
  GroupTransport(const GroupTransport&) = delete;
  GroupTransport& operator=(const GroupTransport&) = delete;
  virtual ~GroupTransport() = default;

  /// The communicator of this rank in `group`, connected to all its members; they call this with
  /// the same `epoch` and group. `link` outlives it. Throws `Error`: the world's failure.
  virtual std::unique_ptr<Communicator> connect(std::uint64_t epoch,
                                                const GroupName& group,
                                                WorldLink& link) = 0;
};

}  // namespace troupe
