#include "troupe/comm/process/process_rendezvous.hpp"

#include <cstdlib>
#include <string>
#include <utility>

namespace troupe {

namespace {

const std::string updates_key = "updates/";

/// Who has asked how many updates others have made, and does not ask again, does not want to know.
constexpr std::chrono::milliseconds interest{500};

}  // namespace

ProcessRendezvous::ProcessRendezvous(WorldLog& log,
                                     int rank,
                                     int world_size,
                                     std::function<Failure(const std::string&)> lost)
    : log_(log),
      rank_(rank),
      lost_(std::move(lost)),
      updates_(static_cast<std::size_t>(world_size)) {}

void ProcessRendezvous::arrive(int rank,
                               std::uint64_t meeting,
                               std::string word,
                               std::shared_ptr<Wakeable> waiter) {
  {
    const std::lock_guard lock(mutex_);
    waiter_ = std::move(waiter);
  }
  log_.say(ArrivedEvent{rank, meeting, std::move(word)});
}

void ProcessRendezvous::leave(int rank, std::string text) {
  log_.say(AbsentEvent{rank, std::move(text)});
}

bool ProcessRendezvous::over(std::uint64_t meeting) const {
  return log_.meetings().over(meeting) || log_.lost();
}

Rendezvous::Absence ProcessRendezvous::absent(std::uint64_t meeting) const {
  return log_.meetings().absent(meeting);
}

Result<Rendezvous::Words> ProcessRendezvous::close(std::uint64_t meeting, const Failure& failure) {
  // Settled is only what the log says: the entry that closes a meeting may come behind the last
  // rank's arrival, or behind another one.
  const LocalRendezvous& meetings = log_.meetings();
  if (auto outcome = meetings.outcome(meeting)) {
    return *std::move(outcome);
  }
  log_.say(ClosedEvent{meeting, failure});
  static_cast<void>(
      log_.wait([&](const WorldHistory&) { return meetings.outcome(meeting).has_value(); },
                Clock::steady().now() + log_.silence_limit()));
  auto outcome = meetings.outcome(meeting);
  return outcome ? *std::move(outcome) : lost_(log_.lost().value_or("it does not answer"));
}

void ProcessRendezvous::note_updates(int rank, std::uint64_t count) {
  log_.meetings().note_updates(rank, count);
  {
    const std::lock_guard lock(mutex_);
    own_updates_ = count;
    if (std::exchange(telling_, true)) {
      return;  // the clerk has not come to it yet
    }
  }
  log_.clerk().once([this] { tell_updates(); });
}

void ProcessRendezvous::tell_updates() {
  std::uint64_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    count = own_updates_;
    telling_ = false;
  }
  log_.set(updates_key + std::to_string(rank_), std::to_string(count));
}

bool ProcessRendezvous::all_have_made(std::uint64_t count) {
  if (log_.meetings().all_have_made(count)) {
    return true;
  }
  {
    const std::lock_guard lock(mutex_);
    asked_for_ = count;
    asked_at_ = Clock::steady().now();
    if (std::exchange(asking_, true)) {
      return false;
    }
  }
  log_.clerk().until([this] { return ask_for_updates(); });
  return false;
}

bool ProcessRendezvous::ask_for_updates() {
  std::vector<int> ranks;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t rank = 0; rank < updates_.size(); ++rank) {
      if (updates_[rank] < asked_for_ && static_cast<int>(rank) != rank_) {
        ranks.push_back(static_cast<int>(rank));
      }
    }
    if (ranks.empty() || Clock::steady().now() - asked_at_ > interest || log_.lost()) {
      asking_ = false;
      return true;
    }
  }
  for (const auto& [rank, text] : log_.look(updates_key, ranks)) {
    const std::uint64_t count = std::strtoull(text.c_str(), nullptr, 10);
    log_.meetings().note_updates(rank, count);
    const std::lock_guard lock(mutex_);
    updates_[static_cast<std::size_t>(rank)] = count;
  }
  return false;
}

void ProcessRendezvous::notify() {
  std::shared_ptr<Wakeable> waiter;
  {
    const std::lock_guard lock(mutex_);
    waiter = waiter_;
  }
  if (waiter) {
    waiter->notify();
  }
}

}  // namespace troupe
