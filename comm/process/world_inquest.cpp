// [Note: the inquest] of a world of processes, and what the ranks say about a failure afterwards.
// All of it in steps of the clerk, none of which waits for anything but the store.
#include "troupe/comm/process/process_world.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

std::string epoch_key(const char* what, std::uint64_t epoch) {
  return std::string(what) + "/" + std::to_string(epoch) + "/";
}

/// Those of `ranks` of which nothing is known yet.
template <class T>
std::vector<int> without(std::vector<int> ranks, const std::map<int, T>& known) {
  std::erase_if(ranks, [&](int rank) { return known.contains(rank); });
  return ranks;
}

}  // namespace

struct ProcessWorld::Hearing {
  std::uint64_t epoch = 0;
  TimePoint began{};
  std::map<int, RankPosition> positions;

  Duration elapsed() const { return Clock::steady().now() - began; }
};

void ProcessWorld::begin_inquest(std::uint64_t epoch) {
  {
    const std::lock_guard lock(mutex_);
    if (epoch != epoch_ || failed_.load() || std::exchange(inquest_, true)) {
      return;
    }
  }
  const auto hearing = std::make_shared<Hearing>();
  hearing->epoch = epoch;
  hearing->began = Clock::steady().now();
  log_.clerk().until([this, hearing] { return tell_position(*hearing); });
  log_.clerk().until([this, hearing] { return hear(*hearing); });
}

bool ProcessWorld::tell_position(const Hearing& hearing) {
  const auto suspicions = log_.of_history(
      [&](const WorldHistory& history) { return history.suspicions(hearing.epoch); });
  const auto mismatch = std::ranges::find(suspicions, Suspicion::Kind::mismatch, &Suspicion::kind);
  if (mismatch != suspicions.end() && late_to(*mismatch) &&
      hearing.elapsed() < options_.inquest_limit / 2) {
    return false;  // what this rank brings to it counts, too
  }
  log_.set(epoch_key("position", hearing.epoch) + std::to_string(options_.rank),
           encode(position()));
  return true;
}

/// Whether this rank has not launched the collective that a peer suspects.
bool ProcessWorld::late_to(const Suspicion& suspicion) const {
  const auto& ranks = suspicion.group.ranks;
  if (std::ranges::find(ranks, options_.rank) == ranks.end()) {
    return false;
  }
  const RankPosition own = position();
  const GroupPosition* group = find_group(own, suspicion.group);
  return group == nullptr || group->launched <= suspicion.turn;
}

bool ProcessWorld::hear(Hearing& hearing) {
  if (failed_.load() || epoch() != hearing.epoch || log_.lost()) {
    return true;
  }
  std::vector<Suspicion> suspicions;
  Inquest inquest;
  std::vector<int> ranks;
  int decider = 0;
  log_.of_history([&](const WorldHistory& history) {  // all as of one entry
    ranks = history.living();
    suspicions = history.suspicions(hearing.epoch);
    inquest.died = history.died();
    inquest.departed = history.departed();
    decider = history.decider(hearing.epoch);
  });
  // A decider that does not decide does not keep the others from it.
  const bool own_turn =
      decider == options_.rank || hearing.elapsed() > options_.inquest_limit * 3 / 2;
  if (!own_turn) {
    return false;
  }
  const std::string key = epoch_key("position", hearing.epoch);
  for (const auto& [rank, bytes] : log_.look(key, without(ranks, hearing.positions))) {
    if (auto position = decode_position(bytes); position && position->rank == rank) {
      hearing.positions.emplace(rank, *std::move(position));
    }
  }
  const auto is = [](Suspicion::Kind kind) {
    return [kind](const Suspicion& suspicion) { return suspicion.kind == kind; };
  };
  const bool complete = without(ranks, hearing.positions).empty();
  // Who has lost a connection may have heard the end of something that its peer tells of soon.
  const bool hasty = inquest.died.empty() && hearing.elapsed() < options_.inquest_limit / 8 &&
                     std::ranges::all_of(suspicions, is(Suspicion::Kind::connection));
  if (std::ranges::none_of(suspicions, is(Suspicion::Kind::dropped)) && (!complete || hasty) &&
      hearing.elapsed() < options_.inquest_limit) {
    return false;
  }
  inquest.suspicions = suspicions;
  inquest.positions = hearing.positions;
  log_.say(FailedEvent{hearing.epoch, diagnose(inquest)});
  return true;
}

// ---- what the ranks say about a failure ---------------------------------------------------------

void ProcessWorld::share_account(std::string account) {
  const std::uint64_t current = epoch();
  // Steps may be given up many times. Who collects for the last epoch may still be at it.
  if (current > 2) {
    for (const char* const what : {"account", "position"}) {
      log_.erase(epoch_key(what, current - 2) + std::to_string(options_.rank));
    }
  }
  log_.set(epoch_key("account", current) + std::to_string(options_.rank), std::move(account));
  if (options_.on_accounts &&
      log_.of_history([](const WorldHistory& h) { return h.lowest_living(); }) == options_.rank) {
    const TimePoint deadline = Clock::steady().now() + options_.inquest_limit;
    log_.clerk().until([this, current, deadline] { return collect_accounts(current, deadline); });
  }
}

bool ProcessWorld::collect_accounts(std::uint64_t epoch, TimePoint deadline) {
  const std::vector<int> ranks =
      log_.of_history([](const WorldHistory& history) { return history.living(); });
  const std::map<int, std::string> accounts = log_.look(epoch_key("account", epoch), ranks);
  if (accounts.size() < ranks.size() && Clock::steady().now() < deadline && !log_.lost()) {
    return false;
  }
  options_.on_accounts(accounts);
  return true;
}

}  // namespace troupe
