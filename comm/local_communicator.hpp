/// Communicators between ranks that are threads of one process: peers' buffers are read directly.
///
/// A `LocalWorld` is what the ranks share. `communicator(rank, ranks, channel)` gives one rank its
/// communicator of a group; all communicators with the same `ranks` and `channel` belong together.
/// Channels of one group are independent: gathers and reduces do not queue behind each other.
///
/// [Note: the order within a collective] Each rank publishes its call and arrives; the last to
/// arrive compares all calls; each then reads its part of the peers' buffers into its own, and
/// leaves; it is done when all have left. All-reduce has a second round. Of a small payload the
/// last to arrive does every rank's part: the others sleep, and are woken once, not twice. A rank
/// that is reading counts as a reader, and an aborted collective is not done on any rank of the
/// group while a reader is inside, so no buffer is freed under a reader. See local_group.hpp.
///
/// A collective that its stream drops (it failed before, or is stopped) fails the world, with the
/// stream's failure in the text.
///
/// Limits: collectives are launched on a `HostStream`, not on `Stream::caller()`. A stream outlives
/// what is launched on it.
#pragma once

#include "troupe/comm/fabric.hpp"
#include "troupe/comm/first_failure.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class LocalWorld final : public Fabric {
 public:
  /// One thread moves so much in about the time that waking another one takes (bench/).
  static constexpr std::int64_t default_one_mover_bytes_max = std::int64_t{256} << 10;

  /// `timeout`: how long a collective waits for peers that do not arrive, from its own arrival; and
  /// how long then for peers that do not finish.
  /// `one_mover_bytes_max`: a payload of no more bytes to read, by all ranks together, is small.
  LocalWorld(int world_size,
             Duration timeout,
             const Clock& clock = Clock::steady(),
             std::int64_t one_mover_bytes_max = default_one_mover_bytes_max);
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;
  /// Communicators and collectives under way may outlive the world.
  ~LocalWorld() override;

  int world_size() const override;
  std::unique_ptr<Communicator> communicator(int rank,
                                             std::vector<int> ranks,
                                             int channel) override;
  Failure report(Failure failure) override { return first_failure().report(std::move(failure)); }
  void abort(const Failure& failure) override;
  void leave(int rank, std::string text) override;
  Rendezvous& rendezvous() override { return rendezvous_; }
  void renew(std::uint64_t epoch) override;
  void end(const Failure& failure) override { first_failure().supersede(failure); }
  /// To look at; `abort` is what ends collectives. Of the current epoch.
  FirstFailure& first_failure();

 private:
  class State;
  class Operation;
  class Endpoint;

  std::shared_ptr<State> current() const;

  LocalRendezvous rendezvous_;
  mutable std::mutex mutex_;      // guards what follows
  std::shared_ptr<State> state_;  // of the current epoch; what was under way in an old one keeps it
  std::uint64_t epoch_ = 1;
};

}  // namespace troupe
