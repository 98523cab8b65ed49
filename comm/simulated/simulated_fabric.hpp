/// A world of ranks in virtual time: collectives that take as long as they are said to, fail, or
/// hang.
///
/// Ranks of a group meet as in LocalWorld: a collective begins when the streams of all of them have
/// come to it and their calls agree; it moves real values at its end, and is then over on each rank
/// a little later. While it lasts it uses its buffers (access_log.hpp), from the moment its own
/// rank came to it.
///
/// Thread rules: one thread.
#pragma once

#include "troupe/comm/fabric.hpp"
#include "troupe/comm/first_failure.hpp"
#include "troupe/comm/simulated/simulated_stream.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// What happens to a collective instead of its completion.
struct SimulatedFault {
  enum class Kind : std::uint8_t { none, error, hang } kind = Kind::none;
  int rank = 0;  ///< world rank on which the error shows
};

/// How a simulated world behaves; empty functions: nothing of the kind.
struct SimulatedNetwork {
  /// How long a collective takes once all ranks of its group have come.
  std::function<Duration(const CollectiveCall& call, int ranks)> time{};
  /// How much longer it takes until it is over on one rank.
  std::function<Duration(int rank)> delay{};
  /// Asked once per collective.
  std::function<SimulatedFault(const CollectiveCall& call)> fault{};
  /// All collectives share one link, which serves one at a time, first come, first served; else
  /// each group and channel has its own.
  bool one_link = false;
  /// How long a rank waits in a collective.
  Duration timeout = std::chrono::seconds{10};
};

class SimulatedFabric final : public Fabric {
 public:
  SimulatedFabric(int world_size,
                  Timeline& timeline,
                  AccessLog& accesses,
                  SimulatedNetwork network);
  ~SimulatedFabric() override;
  SimulatedFabric(const SimulatedFabric&) = delete;
  SimulatedFabric& operator=(const SimulatedFabric&) = delete;

  int world_size() const override { return world_size_; }
  std::unique_ptr<Communicator> communicator(int rank,
                                             std::vector<int> ranks,
                                             int channel) override;
  Failure report(Failure failure) override { return first_failure_->report(std::move(failure)); }
  void abort(const Failure& failure) override;
  void leave(int rank, std::string text) override;
  Rendezvous& rendezvous() override { return rendezvous_; }
  void renew(std::uint64_t epoch) override;
  void end(const Failure& failure) override { first_failure_->supersede(failure); }

  /// Of the current epoch.
  const FirstFailure& first_failure() const { return *first_failure_; }
  std::uint64_t epoch() const { return epoch_; }
  /// The place among all groups of one that owns an action of the timeline, or was touched.
  std::optional<std::size_t> group_index(const void* group) const;
  /// How long the payload of at least one collective was on its way.
  Duration moving_time() const;

 private:
  class Group;
  class Endpoint;

  void request_link(Group& group);
  void release_link(Group& group);
  void begin_moving();
  void end_moving();

  const int world_size_;
  Timeline& timeline_;
  AccessLog& accesses_;
  const SimulatedNetwork network_;
  LocalRendezvous rendezvous_;
  std::uint64_t epoch_ = 1;
  std::unique_ptr<FirstFailure> first_failure_ = std::make_unique<FirstFailure>();
  std::map<std::pair<std::vector<int>, int>, std::unique_ptr<Group>> groups_;
  std::map<int, std::string> gone_;
  std::vector<Group*> link_queue_;  // one_link: the first one has it
  std::size_t moving_ = 0;
  TimePoint moving_since_{};
  Duration moving_time_{};
};

}  // namespace troupe
