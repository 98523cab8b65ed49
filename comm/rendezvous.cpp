#include "troupe/comm/rendezvous.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

LocalRendezvous::Meeting& LocalRendezvous::at(std::uint64_t meeting) {
  Meeting& found = meetings_[meeting];
  found.words.resize(static_cast<std::size_t>(world_size_));
  return found;
}

bool LocalRendezvous::complete(std::uint64_t meeting) const {
  const auto found = meetings_.find(meeting);
  return found != meetings_.end() && found->second.present == static_cast<std::size_t>(world_size_);
}

void LocalRendezvous::arrive(int rank,
                             std::uint64_t meeting,
                             std::string word,
                             std::shared_ptr<Wakeable> waiter) {
  const std::lock_guard lock(mutex_);
  if (closed_) {
    waiter->notify();
    return;  // others go by that already
  }
  Meeting& own = at(meeting);
  own.words[static_cast<std::size_t>(rank)] = std::move(word);
  own.waiters.push_back(std::move(waiter));
  if (++own.present < static_cast<std::size_t>(world_size_)) {
    return;
  }
  // Who comes here has read the words of the meeting before the last one.
  meetings_.erase(meetings_.begin(), meetings_.lower_bound(meeting - 1));
  for (const auto& each : std::exchange(own.waiters, {})) {
    each->notify();
  }
}

void LocalRendezvous::leave(int rank, std::string text) {
  const std::lock_guard lock(mutex_);
  gone_.emplace(rank, std::move(text));
  for (auto& [number, meeting] : meetings_) {
    for (const auto& each : meeting.waiters) {
      each->notify();
    }
  }
}

bool LocalRendezvous::over(std::uint64_t meeting) const {
  const std::lock_guard lock(mutex_);
  if (closed_ || complete(meeting)) {
    return true;
  }
  const auto found = meetings_.find(meeting);
  return found != meetings_.end() && std::ranges::any_of(gone_, [&](const auto& each) {
           return !found->second.words[static_cast<std::size_t>(each.first)];
         });
}

Rendezvous::Absence LocalRendezvous::absent(std::uint64_t meeting) const {
  const std::lock_guard lock(mutex_);
  Absence absence;
  const auto found = meetings_.find(meeting);
  for (int rank = 0; rank < world_size_; ++rank) {
    if (found != meetings_.end() && found->second.words[static_cast<std::size_t>(rank)]) {
      continue;
    }
    absence.ranks.push_back(rank);
    if (const auto gone = gone_.find(rank); gone != gone_.end()) {
      absence.left.insert(*gone);
    }
  }
  return absence;
}

Result<Rendezvous::Words> LocalRendezvous::close(std::uint64_t meeting, const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (auto outcome = settled(meeting)) {
    return *std::move(outcome);
  }
  closed_ = failure;
  for (auto& [number, open] : meetings_) {
    for (const auto& each : open.waiters) {
      each->notify();
    }
  }
  return failure;
}

std::optional<Result<Rendezvous::Words>> LocalRendezvous::outcome(std::uint64_t meeting) const {
  const std::lock_guard lock(mutex_);
  return settled(meeting);
}

std::optional<Result<Rendezvous::Words>> LocalRendezvous::settled(std::uint64_t meeting) const {
  if (complete(meeting)) {
    Words words;
    for (const auto& word : meetings_.at(meeting).words) {
      words.push_back(word.value_or(""));
    }
    return words;
  }
  if (closed_) {
    return Result<Words>(*closed_);
  }
  return std::nullopt;
}

void LocalRendezvous::note_updates(int rank, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  updates_[static_cast<std::size_t>(rank)] = count;
}

bool LocalRendezvous::all_have_made(std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  for (int rank = 0; rank < world_size_; ++rank) {
    if (updates_[static_cast<std::size_t>(rank)] < count && !gone_.contains(rank)) {
      return false;
    }
  }
  return true;
}

}  // namespace troupe
