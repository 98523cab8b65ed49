#include "troupe/comm/process/diagnosis.hpp"

#include "troupe/comm/call_check.hpp"

#include <algorithm>
#include <vector>

namespace troupe {

namespace {

std::string name_of(int rank) {
  return "rank " + std::to_string(rank);
}

Failure about(const LoggedCall& call, ErrorCode code, int rank, std::string text) {
  return {.code = code,
          .text = std::move(text),
          .rank = rank,
          .ticket = call.ticket,
          .bucket = call.bucket};
}

const Suspicion* find_kind(const Inquest& inquest, Suspicion::Kind kind) {
  const auto found = std::ranges::find(inquest.suspicions, kind, &Suspicion::kind);
  return found == inquest.suspicions.end() ? nullptr : &*found;
}

bool has_rank(const GroupName& group, int rank) {
  return std::ranges::find(group.ranks, rank) != group.ranks.end();
}

/// The group of the suspicion as `rank` sees it, null if it has not answered or launched nothing.
const GroupPosition* position_of(const Inquest& inquest, const GroupName& group, int rank) {
  const auto found = inquest.positions.find(rank);
  return found == inquest.positions.end() ? nullptr : find_group(found->second, group);
}

/// The calls of one turn, as far as they are known, disagree.
std::optional<Failure> compare_turn(const Inquest& inquest, const Suspicion& suspicion) {
  std::vector<CollectiveCall> calls;
  std::vector<int> ranks;
  for (const int rank : suspicion.group.ranks) {
    const GroupPosition* group = position_of(inquest, suspicion.group, rank);
    const LoggedLaunch* launch = group == nullptr ? nullptr : find_launch(*group, suspicion.turn);
    if (rank == suspicion.rank || launch != nullptr) {
      calls.push_back(rank == suspicion.rank ? suspicion.call.view() : launch->call.view());
      ranks.push_back(rank);
    }
  }
  return compare_calls(calls, ranks);
}

Failure mismatch(const Suspicion& suspicion) {
  const int peer = suspicion.peer >= 0 ? suspicion.peer : suspicion.rank;
  return about(suspicion.call, ErrorCode::mismatch, peer,
               name_of(peer) + " launched another collective than " + name_of(suspicion.rank) +
                   ": expected " + describe_exactly(suspicion.call.view()) +
                   (suspicion.text.empty() ? "" : ", actual " + suspicion.text));
}

/// A rank is gone: the lowest rank that waits for it says in what.
Failure death(const Inquest& inquest, int rank, const std::string& text) {
  const auto waits = [rank](const LoggedCall& call, const std::string& why) {
    return about(call, ErrorCode::peer_failed, rank, describe(call.view()) + " cannot end: " + why);
  };
  for (const Suspicion& suspicion : inquest.suspicions) {
    if (has_rank(suspicion.group, rank)) {
      return waits(suspicion.call, text);
    }
  }
  for (const auto& [other, position] : inquest.positions) {
    for (const GroupPosition& group : position.groups) {
      const auto begun =
          std::ranges::find(group.launches, LaunchStage::begun, &LoggedLaunch::stage);
      if (other != rank && has_rank(group.group, rank) && begun != group.launches.end()) {
        return waits(begun->call, text);
      }
    }
  }
  return {.code = ErrorCode::peer_failed, .text = text, .rank = rank};
}

/// How far a member of the group is that is awaited, as `LocalGroup` says it.
std::string absence_of(const Inquest& inquest, const Suspicion& suspicion, int rank) {
  if (!inquest.positions.contains(rank)) {
    return name_of(rank) + " does not answer";
  }
  const GroupPosition* group = position_of(inquest, suspicion.group, rank);
  if (group == nullptr || group->launches.empty()) {
    return name_of(rank) + " has launched nothing";
  }
  if (group->launched <= suspicion.turn) {
    LoggedCall last = group->launches.back().call;
    last.label.clear();  // a world of threads does not know it any more
    return name_of(rank) + " has launched nothing after " + describe(last.view());
  }
  const LoggedLaunch* launch = find_launch(*group, suspicion.turn);
  if (launch == nullptr || launch->stage == LaunchStage::ended) {
    return name_of(rank) + " is done with it";
  }
  return name_of(rank) + (launch->stage == LaunchStage::begun
                              ? " takes part but does not finish"
                              : " has launched a collective that its stream has not come to");
}

/// Whether a member has not come to the turn, as far as one knows.
bool missing(const Inquest& inquest, const Suspicion& suspicion, int rank) {
  const GroupPosition* group = position_of(inquest, suspicion.group, rank);
  if (group == nullptr || group->launched <= suspicion.turn) {
    return true;
  }
  const LoggedLaunch* launch = find_launch(*group, suspicion.turn);
  return launch != nullptr && launch->stage == LaunchStage::launched;
}

/// Whether a member has come to the turn and is not done.
bool unfinished(const Inquest& inquest, const Suspicion& suspicion, int rank) {
  const GroupPosition* group = position_of(inquest, suspicion.group, rank);
  const LoggedLaunch* launch = group == nullptr ? nullptr : find_launch(*group, suspicion.turn);
  return launch != nullptr && launch->stage == LaunchStage::begun;
}

/// Who is waited for: those that have not come; if all have, who does not finish.
std::vector<int> awaited(const Inquest& inquest, const Suspicion& suspicion) {
  std::vector<int> ranks;
  for (const auto& counts : {missing, unfinished}) {
    for (const int rank : suspicion.group.ranks) {
      if (rank != suspicion.rank && counts(inquest, suspicion, rank)) {
        ranks.push_back(rank);
      }
    }
    if (!ranks.empty()) {
      break;
    }
  }
  return ranks;
}

Failure timed_out(const Inquest& inquest, const Suspicion& suspicion) {
  std::vector<int> ranks = awaited(inquest, suspicion);
  if (ranks.empty() && suspicion.peer >= 0) {
    ranks.push_back(suspicion.peer);
  }
  std::string actual;
  for (const int rank : ranks) {
    actual += (actual.empty() ? "" : "; ") + absence_of(inquest, suspicion, rank);
  }
  const std::string whom = ranks.empty() ? "its peers" : describe_ranks(ranks);
  return about(suspicion.call, ErrorCode::timeout, ranks.empty() ? -1 : ranks.front(),
               name_of(suspicion.rank) + " waited " + std::to_string(suspicion.waited_ms) +
                   " ms for " + whom + ": expected " + describe_exactly(suspicion.call.view()) +
                   ", actual: " + (actual.empty() ? suspicion.text : actual));
}

Failure disconnected(const Inquest& inquest, const Suspicion& suspicion) {
  int peer = suspicion.peer;
  if (peer < 0) {  // whoever does not answer has probably ended
    const auto silent = std::ranges::find_if(suspicion.group.ranks, [&](int rank) {
      return rank != suspicion.rank && !inquest.positions.contains(rank);
    });
    peer = silent == suspicion.group.ranks.end() ? -1 : *silent;
  }
  return about(suspicion.call, ErrorCode::peer_failed, peer,
               name_of(suspicion.rank) + " lost its connection to " +
                   (peer < 0 ? "a peer" : name_of(peer)) + " in " +
                   describe(suspicion.call.view()) + ": " + suspicion.text +
                   (peer < 0 ? "" : "; " + absence_of(inquest, suspicion, peer)));
}

}  // namespace

std::optional<Failure> awaits_departed(const GroupName& group,
                                       const LoggedLaunch& launch,
                                       const std::map<int, DepartedEvent>& departed) {
  for (const int rank : group.ranks) {
    const auto left = departed.find(rank);
    if (left == departed.end()) {
      continue;
    }
    const auto count = std::ranges::find(left->second.launched, group, &LaunchCount::group);
    if (count != left->second.launched.end() && count->launched > launch.turn) {
      continue;
    }
    return about(launch.call, ErrorCode::peer_failed, rank,
                 describe(launch.call.view()) + " waits for " + name_of(rank) +
                     ", which has left: " + left->second.text);
  }
  return std::nullopt;
}

Failure diagnose(const Inquest& inquest) {
  using Kind = Suspicion::Kind;
  if (const Suspicion* dropped = find_kind(inquest, Kind::dropped)) {
    return about(dropped->call, ErrorCode::peer_failed, dropped->rank,
                 name_of(dropped->rank) + " dropped " + describe(dropped->call.view()) + ": " +
                     dropped->text);
  }
  if (const Suspicion* suspicion = find_kind(inquest, Kind::mismatch)) {
    const auto compared = compare_turn(inquest, *suspicion);
    return compared ? *compared : mismatch(*suspicion);
  }
  if (!inquest.died.empty()) {
    const auto& [rank, text] = *inquest.died.begin();
    return death(inquest, rank, text);
  }
  for (const Suspicion& suspicion : inquest.suspicions) {
    if (auto failure = compare_turn(inquest, suspicion)) {
      return *std::move(failure);
    }
    const LoggedLaunch awaited_launch{suspicion.turn, suspicion.call, LaunchStage::begun};
    if (auto failure = awaits_departed(suspicion.group, awaited_launch, inquest.departed)) {
      return *std::move(failure);
    }
  }
  if (const Suspicion* suspicion = find_kind(inquest, Kind::timeout)) {
    return timed_out(inquest, *suspicion);
  }
  if (const Suspicion* suspicion = find_kind(inquest, Kind::connection)) {
    return disconnected(inquest, *suspicion);
  }
  return {.code = ErrorCode::internal, .text = "an inquest without a suspicion"};
}

}  // namespace troupe
