/// A world whose ranks are processes, seen from one of them. Other than `LocalWorld` it knows its
/// own rank only: `rank` arguments are that one.
///
/// [Note: the history] All that concerns the world as a whole (failures, departures, deaths, who
/// came to which meeting) is an entry in one log of the store. Every process reads that log in
/// order and applies it to its own copy of the world's state, so all come to the same conclusions:
/// the first failure is the one that comes first in the log. What a process has to say it appends,
/// and acts when it reads it.
///
/// [Note: the inquest] A rank that sees something go wrong (`WorldLink::suspect`) appends its
/// suspicion. On reading the first one of an epoch every rank puts its position (`RankPosition`)
/// in the store. The rank of the first suspicion collects them for a while, decides
/// (`diagnose`, in diagnosis.hpp) and appends the failure. If it does not, the others append
/// theirs.
///
/// A failure, and a rank's end, are told through the log at once; a rank that has nothing to tell
/// any more (its process was killed, stopped or cut off) is told of by the store, by its will.
///
/// Thread rules: any thread. Threads of its own read and write the log; what they call is noted.
/// Errors: a store that is lost fails the world: without it nobody can tell what others do. What
/// needs the store waits for it `WorldLog::store_limit` at most, or leaves it to a thread of the
/// log.
#pragma once

#include "troupe/comm/fabric.hpp"
#include "troupe/comm/process/diagnosis.hpp"
#include "troupe/comm/process/process_rendezvous.hpp"
#include "troupe/comm/process/world_link.hpp"
#include "troupe/comm/process/world_log.hpp"
#include "troupe/comm/store/store.hpp"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

struct ProcessWorldOptions {
  int rank = 0;
  int world_size = 1;
  /// This process, for messages: "pid 41 on host7".
  std::string name{};
  /// Whose process serves the store; -1: none's.
  int store_rank = 0;
  /// How long the ranks are waited for at the start.
  Duration join_timeout = std::chrono::minutes{5};
  /// After so long `on_waiting` is told, once, for whom this rank waits at the start; on its
  /// thread.
  Duration patience = std::chrono::seconds{10};
  std::function<void(const std::string&)> on_waiting{};
  /// Of collectives and meetings.
  Duration timeout = std::chrono::minutes{10};
  /// A rank that gives no sign of life for so long has failed.
  Duration silence_limit = std::chrono::seconds{30};
  /// A rank whose connection to the store ends has so long to make it anew.
  Duration reconnect_grace = std::chrono::seconds{1};
  /// How long ranks that do not answer are waited for when something has gone wrong.
  Duration inquest_limit = std::chrono::seconds{2};
  /// How long, at the end, the rank that serves the store does so for others; and after a failure,
  /// when some may never come.
  Duration linger_limit = std::chrono::seconds{10};
  Duration failed_linger_limit = std::chrono::seconds{2};
  /// Called on the store's rank when all others are done: from then on no client may connect to
  /// this store, since the next world of these processes has another one at the same place.
  std::function<void()> close_store{};
  /// Called once in each epoch with the world's failure; on a thread of the world. Does not block.
  std::function<void(std::uint64_t epoch, const Failure&)> on_failure{};
  /// Called on the lowest rank that lives, after a failure, with what the ranks have said to
  /// `share_account` since; on a thread of the world.
  std::function<void(const std::map<int, std::string>&)> on_accounts{};
};

class ProcessWorld final : public Fabric, private WorldLink {
 public:
  /// Collective: returns when all ranks have come, with the same world size. Throws `Error`: a rank
  /// that does not come (timeout, named), two with the same number, another world size.
  /// `store` is this process's own client, and outlives the world, which closes it at its end;
  /// `transport` outlives the world's communicators.
  ProcessWorld(ProcessWorldOptions options, Store& store, GroupTransport& transport);
  /// Communicators are gone by then. Returns within bounded time.
  ~ProcessWorld() override;
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  int world_size() const override { return options_.world_size; }
  std::unique_ptr<Communicator> communicator(int rank,
                                             std::vector<int> ranks,
                                             int channel) override;
  Failure report(Failure failure) override;
  void abort(const Failure& failure) override;
  void leave(int rank, std::string text) override;
  Rendezvous& rendezvous() override { return rendezvous_; }
  void renew(std::uint64_t epoch) override;
  void end(const Failure& failure) override;

  /// The failure of this epoch, if the world has failed.
  std::optional<Failure> failure() const override;
  /// Returns when all ranks have left, or the world has failed, or `timeout` has passed: then that
  /// is the world's failure.
  void await_departures();
  /// What this rank has to say about the failure, for `on_accounts`. Does not block.
  void share_account(std::string account);

 private:
  int rank() const override { return options_.rank; }
  Failure suspect(Suspicion suspicion) override;
  std::optional<Failure> begins(const GroupName& group, const LoggedLaunch& launch) override;
  void watch(WatchedGroup& group) override;
  void forget(WatchedGroup& group) override;

  void on_change();
  void fail(std::uint64_t epoch, const Failure& failure, bool for_good = false);
  Failure await_failure(Duration limit, const Failure& otherwise);
  Failure store_lost(const std::string& why) const;
  std::uint64_t epoch() const;
  void interrupt_groups() const;
  RankPosition position() const;

  // [Note: the inquest]; in world_inquest.cpp. Steps of the clerk.

  struct Hearing;
  void begin_inquest(std::uint64_t epoch);
  bool tell_position(const Hearing& hearing);
  bool hear(Hearing& hearing);  ///< of the decider
  bool late_to(const Suspicion& suspicion) const;
  bool collect_accounts(std::uint64_t epoch, TimePoint deadline);

  // In world_membership.cpp.

  void join();
  void linger();
  void await_all(const std::string& prefix, TimePoint deadline);

  const ProcessWorldOptions options_;
  const std::uint64_t process_;  ///< see `JoinedEvent`
  Store& store_;
  GroupTransport& transport_;

  std::atomic<bool> failed_{false};  // changed under mutex_
  mutable std::mutex mutex_;         // guards what follows; no other is taken with it held
  std::uint64_t epoch_ = 0;
  std::optional<Failure> failure_;               ///< of the epoch
  bool ended_ = false;                           ///< for good: `failure_` stays
  bool inquest_ = false;                         ///< has begun in this epoch
  std::map<GroupName, LoggedLaunch> begun_;      ///< the latest one that waits, or has waited
  std::map<GroupName, std::uint64_t> launched_;  ///< in communicators of this epoch that are gone

  mutable std::mutex groups_mutex_;                // guards what follows
  std::map<WatchedGroup*, std::uint64_t> groups_;  ///< and the epoch of each

  WorldLog log_;  ///< its threads use what stands above
  ProcessRendezvous rendezvous_;
};

}  // namespace troupe
