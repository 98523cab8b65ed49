/// Finds out what has gone wrong in a world of processes from what its ranks have seen and how far
/// they are: the decision at the end of an inquest. Pure.
///
/// What counts first (a row holds if those above it do not):
///
///     seen                                       failure
///     a rank dropped a collective                peer_failed: that rank, with its stream's text
///     a peer has brought another call            mismatch, as `compare_calls` says
///     a rank is gone                             peer_failed: that rank, and who waits for it
///     calls of one turn differ                   mismatch, as `compare_calls` says
///     a rank awaited has left the world          peer_failed: that rank, and why it has left
///     a deadline has passed                      timeout: the ranks awaited, and how far they are
///     a connection was lost                      peer_failed: the rank at its other end
///
/// Where a world of threads can be in the same situation, the texts are the same.
#pragma once

#include "troupe/comm/process/position.hpp"
#include "troupe/comm/process/world_event.hpp"
#include "troupe/comm/process/world_link.hpp"
#include "troupe/core/error.hpp"

#include <map>
#include <optional>
#include <span>
#include <string>

namespace troupe {

struct Inquest {
  std::span<const Suspicion> suspicions;  ///< in the order of the log
  std::map<int, RankPosition> positions;  ///< of the ranks that have answered
  std::map<int, std::string> died;        ///< why
  std::map<int, DepartedEvent> departed;
};

/// There is a suspicion, or a rank is gone.
Failure diagnose(const Inquest& inquest);

/// A collective that waits for a rank which launches nothing any more: of those that have departed
/// without it, the lowest. Nothing if there is none.
std::optional<Failure> awaits_departed(const GroupName& group,
                                       const LoggedLaunch& launch,
                                       const std::map<int, DepartedEvent>& departed);

}  // namespace troupe
