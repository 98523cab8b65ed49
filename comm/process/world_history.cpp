#include "troupe/comm/process/world_history.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

/// Who waits looks again after every entry (process_world.cpp).
struct Nobody final : Wakeable {
  void notify() override {}
};

}  // namespace

WorldHistory::WorldHistory(int world_size) : world_size_(world_size), meetings_(world_size) {}

void WorldHistory::apply(std::string_view entry) {
  const std::optional<WorldEvent> event = decode_event(entry);
  if (!event || !std::visit([this](const auto& each) { return on(each); }, *event)) {
    on(EndedEvent{{.code = ErrorCode::internal,
                   .text = "entry " + std::to_string(applied_) +
                           " of the world's log cannot be read: it is damaged, or the ranks run "
                           "different versions of Troupe"}});
  }
  ++applied_;
}

std::vector<int> WorldHistory::not_joined() const {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!joined_.contains(rank)) {
      missing.push_back(rank);
    }
  }
  return missing;
}

bool WorldHistory::is_member(int rank, std::uint64_t process) const {
  const auto found = joined_.find(rank);
  return found != joined_.end() && found->second.process == process;
}

std::optional<Failure> WorldHistory::refusal(std::uint64_t process) const {
  const auto found = refused_.find(process);
  return found == refused_.end() ? failure(0) : std::optional(found->second);
}

std::optional<Failure> WorldHistory::failure(std::uint64_t epoch) const {
  if (ended_) {
    return ended_;
  }
  const auto found = failures_.find(epoch);
  return found == failures_.end() ? std::nullopt : std::optional(found->second);
}

const std::vector<Suspicion>& WorldHistory::suspicions(std::uint64_t epoch) const {
  static const std::vector<Suspicion> none;
  const auto found = suspicions_.find(epoch);
  return found == suspicions_.end() ? none : found->second;
}

bool WorldHistory::all_departed() const {
  return departed_.size() == static_cast<std::size_t>(world_size_);
}

bool WorldHistory::undecided(std::uint64_t epoch) const {
  return !failure(epoch) && (!died_.empty() || !suspicions(epoch).empty());
}

int WorldHistory::decider(std::uint64_t epoch) const {
  const std::vector<Suspicion>& all = suspicions(epoch);
  return all.empty() || died_.contains(all.front().rank) ? lowest_living() : all.front().rank;
}

int WorldHistory::lowest_living() const {
  int rank = 0;
  while (died_.contains(rank)) {
    ++rank;
  }
  return rank;
}

std::vector<int> WorldHistory::living() const {
  std::vector<int> ranks;
  for (const auto& [rank, event] : joined_) {
    if (!died_.contains(rank)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

void WorldHistory::fail(std::uint64_t epoch, Failure failure) {
  failures_.emplace(epoch, std::move(failure));  // an earlier one stays
}

/// A world that is complete is not harmed by who comes too late.
void WorldHistory::refuse(const JoinedEvent& event, std::string text) {
  Failure failure{
      .code = ErrorCode::bad_configuration, .text = std::move(text), .rank = event.rank};
  if (all_joined()) {
    refused_.emplace(event.process, std::move(failure));
  } else {
    fail(0, std::move(failure));
  }
}

bool WorldHistory::on(const JoinedEvent& event) {
  if (event.world_size != world_size_) {
    refuse(event, "ranks were told different world sizes: " + std::to_string(world_size_) + ", " +
                      std::to_string(event.world_size) + " on rank " + std::to_string(event.rank) +
                      " (" + event.name + ")");
    return true;
  }
  if (!is_rank(event.rank)) {
    return false;
  }
  const auto [place, first] = joined_.emplace(event.rank, event);
  if (!first) {
    refuse(event, "two processes are rank " + std::to_string(event.rank) + ": " +
                      place->second.name + " and " + event.name);
  }
  return true;
}

bool WorldHistory::on(const FailedEvent& event) {
  if (event.epoch == 0 && all_joined()) {
    return true;  // the last rank has come before another one gave up waiting
  }
  fail(event.epoch, event.failure);
  return true;
}

bool WorldHistory::on(const SuspectedEvent& event) {
  if (!is_rank(event.suspicion.rank)) {
    return false;
  }
  auto& all = suspicions_[event.epoch];
  if (!failure(event.epoch) &&
      std::ranges::find(all, event.suspicion.rank, &Suspicion::rank) == all.end()) {
    all.push_back(event.suspicion);
  }
  suspicions_.erase(suspicions_.begin(), suspicions_.lower_bound(event.epoch));
  return true;
}

bool WorldHistory::on(const DepartedEvent& event) {
  if (!is_rank(event.rank)) {
    return false;
  }
  departed_.emplace(event.rank, event);
  return true;
}

bool WorldHistory::on(const DiedEvent& event) {
  if (!is_rank(event.rank)) {
    return false;
  }
  if (joined_.contains(event.rank) && !is_member(event.rank, event.process)) {
    return true;
  }
  if (!departed_.contains(event.rank)) {
    died_.emplace(event.rank, event.text);
  }
  if (!all_joined()) {
    fail(0, {.code = ErrorCode::peer_failed, .text = event.text, .rank = event.rank});
  }
  meetings_.leave(event.rank, event.text);
  return true;
}

bool WorldHistory::on(const ArrivedEvent& event) {
  if (!is_rank(event.rank)) {
    return false;
  }
  meetings_.arrive(event.rank, event.meeting, event.word, std::make_shared<Nobody>());
  return true;
}

bool WorldHistory::on(const AbsentEvent& event) {
  if (!is_rank(event.rank)) {
    return false;
  }
  meetings_.leave(event.rank, event.text);
  return true;
}

bool WorldHistory::on(const ClosedEvent& event) {
  static_cast<void>(meetings_.close(event.meeting, event.failure));
  return true;
}

bool WorldHistory::on(const EndedEvent& event) {
  if (!ended_) {
    ended_ = event.failure;
  }
  return true;
}

}  // namespace troupe
