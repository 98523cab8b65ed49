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
/// Thread rules: any thread. A thread of its own reads the log; what it calls is noted.
/// Errors: a store that is lost fails the world: without it nobody can tell what others do.
#pragma once

#include "troupe/comm/fabric.hpp"
#include "troupe/comm/process/world_link.hpp"
#include "troupe/comm/store/store.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

struct ProcessWorldOptions {
  int rank = 0;
  int world_size = 1;
  /// This process, for messages: "pid 41 on host7".
  std::string name{};
  /// Of collectives and meetings.
  Duration timeout = std::chrono::minutes{10};
  /// A rank that gives no sign of life for so long has failed.
  Duration silence_limit = std::chrono::seconds{30};
  /// A rank whose connection to the store ends has so long to make it anew.
  Duration reconnect_grace = std::chrono::seconds{1};
  /// How long ranks that do not answer are waited for when something has gone wrong.
  Duration inquest_limit = std::chrono::seconds{2};
  /// Called once in each epoch with the world's failure; on a thread of the world. Must not block.
  std::function<void(const Failure&)> on_failure{};
};

/// Collective: returns when all ranks have come, with the same world size. Throws `Error`: a rank
/// that does not come (timeout, named), two with the same number, another world size.
/// `store` is this process's own client; `transport` outlives the world's communicators.
std::unique_ptr<Fabric> join_process_world(ProcessWorldOptions options,
                                           std::unique_ptr<Store> store,
                                           GroupTransport& transport);

}  // namespace troupe
