/// What the trainer's thread and the actors of one rank share besides messages: a few words that
/// say how far the comm actor is and whether the rank has failed, and the things that were
/// injected.
///
/// [Note: launched tickets] The comm actor launches strictly in ticket order. It first writes the
/// event of a launch to its place (`Launch::recorded`, `Queue::last`), then stores the ticket to
/// `launched`. Whoever has seen `launched >= t` may read the events of tickets up to t, as long as
/// the trainer has not made a call since that reuses the place.
#pragma once

#include "troupe/actors/messages.hpp"
#include "troupe/comm/device.hpp"
#include "troupe/core/trace.hpp"

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace troupe {

/// One launched collective, as observers see it. The launch order is the same on every rank.
struct LaunchRecord {
  Ticket ticket = 0;
  Collective op = Collective::barrier;
  BucketId bucket = no_bucket;
  DType dtype = DType::f32;
  std::int64_t numel = 0;
  int root = 0;
  Channel channel = Channel::gather;
  GroupAxis axis = GroupAxis::world;  ///< the group that takes part
  std::uint32_t runtime = 0;          ///< whose bucket it is; 0: the trainer's own
  std::string label;

  bool operator==(const LaunchRecord&) const = default;
};

std::string to_string(const LaunchRecord& record);

/// What a rank tells of itself when the world has failed: the failure, and its last launches.
struct LaunchDump {
  struct Launch {
    LaunchRecord record;
    std::string state = "in flight";  ///< or "done", "failed"
    bool operator==(const Launch&) const = default;
  };

  int rank = 0;
  Failure failure;
  std::vector<Launch> launches;  ///< in order
  bool operator==(const LaunchDump&) const = default;
};

/// "rank 1 failed: …", and a line for each launch.
std::string to_string(const LaunchDump& dump);

/// Given by the world; constant while the rank lives.
struct RankConfig {
  struct Queue {
    Communicator* communicator = nullptr;
    Stream* stream = nullptr;
  };

  int rank = 0;
  int world_size = 1;
  Device* device = nullptr;
  std::array<Queue, channel_count> queues{};
  Waiter* waiter = nullptr;  ///< the trainer's; the queues' streams notify it
  const Clock* clock = nullptr;
  Duration timeout{};    ///< of collectives; the trainer waits a little longer, to hear their error
  Duration comm_poll{};  ///< how long the comm thread polls before it sleeps
  /// Makes a failure known to the world; returns the world's first one.
  std::function<Failure(Failure)> report_failure;
  /// Ends all collectives of the world with a failure.
  std::function<void(const Failure&)> abort;
  std::function<void(const LaunchRecord&)> on_launch;  ///< on the comm actor's thread; may be empty
  std::function<void(const std::string&)> log;         ///< failure dumps, a text each; may be empty
  std::function<void(const LaunchDump&)> on_dump;      ///< the same as values; may be empty
  RankTrace* trace = nullptr;                          ///< null: nothing is recorded
};

struct RankState {
  explicit RankState(RankConfig given) : config(std::move(given)) {}

  const RankConfig config;

  // Written by the comm actor.
  alignas(64) std::atomic<Ticket> launched{0};
  std::atomic<std::uint64_t> completed{0};        ///< launched tickets whose end it has heard of
  std::array<Event, channel_count> last_event{};  ///< see [Note: launched tickets]
  std::array<std::atomic<std::uint64_t>, collective_count> launches{};
  std::array<std::atomic<std::uint64_t>, collective_count>
      bytes_sent{};                           ///< payload handed over by this rank
  std::atomic<std::uint64_t> launch_hash{0};  ///< of the whole sequence

  // Written by the supervisor: `failure` once, before `failed`.
  alignas(64) std::atomic<bool> failed{false};
  Failure failure;

  std::atomic<int> alive{0};  ///< actors of this rank
};

}  // namespace troupe
