/// What one rank has launched on one communicator, and how far it has come: kept to tell peers
/// about it when something goes wrong.
///
/// The members of a group go through the same collectives in lockstep: collective number n that a
/// member launches on a communicator is its `turn` n, from 0.
///
/// Thread rules: any thread.
#pragma once

#include "troupe/comm/communicator.hpp"

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// A call as one can send it: without buffers, its label a copy.
struct LoggedCall {
  Collective op = Collective::barrier;
  Ticket ticket = 0;
  std::uint32_t runtime = 0;
  BucketId bucket = no_bucket;
  std::string label;
  DType dtype = DType::f32;
  std::int64_t numel = 0;
  int root = 0;

  /// A call to look at; valid as long as this is.
  CollectiveCall view() const;
  bool operator==(const LoggedCall&) const = default;
};

LoggedCall logged(const CollectiveCall& call);

enum class LaunchStage : std::uint8_t {
  launched,  ///< handed to the stream
  begun,     ///< the stream has come to it: peers are awaited
  ended,     ///< done, failed or dropped
};

struct LoggedLaunch {
  std::uint64_t turn = 0;
  LoggedCall call;
  LaunchStage stage = LaunchStage::launched;

  bool operator==(const LoggedLaunch&) const = default;
};

/// Names a communicator in all processes alike.
struct GroupName {
  std::vector<int> ranks;  ///< world ranks, ascending
  int channel = 0;

  auto operator<=>(const GroupName&) const = default;
};

struct GroupPosition {
  GroupName group;
  std::uint64_t launched = 0;  ///< how many so far: the number of the next turn
  /// In order, without gaps: some that have ended, then those that have not, the earliest first.
  std::vector<LoggedLaunch> launches;

  bool operator==(const GroupPosition&) const = default;
};

class LaunchLog {
 public:
  /// Launches that have ended are forgotten beyond so many; those that have not never are.
  static constexpr std::size_t kept = 16;
  /// A position holds no more: they are sent.
  static constexpr std::size_t told_max = 256;

  explicit LaunchLog(GroupName group) : group_(std::move(group)) {}

  const GroupName& group() const { return group_; }
  std::uint64_t launch(const CollectiveCall& call);  ///< returns its turn
  void begin(std::uint64_t turn);
  void end(std::uint64_t turn);  ///< also of one that was dropped before it began
  GroupPosition position() const;
  /// The earliest launch that has begun and not ended.
  std::optional<LoggedLaunch> awaiting() const;

 private:
  void advance(std::uint64_t turn, LaunchStage stage);

  const GroupName group_;
  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t launched_ = 0;
  std::deque<LoggedLaunch> launches_;
};

}  // namespace troupe
