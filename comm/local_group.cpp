#include "troupe/comm/local_group.hpp"

#include "troupe/comm/call_check.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

LocalGroup::LocalGroup(std::vector<int> ranks)
    : ranks_(std::move(ranks)), members_(ranks_.size()), calls_(ranks_.size()) {}

int LocalGroup::member_of(int world_rank) const {
  const auto place = std::ranges::find(ranks_, world_rank);
  return place == ranks_.end() ? -1 : static_cast<int>(place - ranks_.begin());
}

std::uint64_t LocalGroup::launch(int member) {
  return members_[static_cast<std::size_t>(member)].launched++;
}

bool LocalGroup::all_at(Stage stage) const {
  return std::ranges::all_of(members_,
                             [stage](const Member& member) { return member.stage >= stage; });
}

std::optional<Failure> LocalGroup::arrive(int member, const CollectiveCall& call) {
  calls_[static_cast<std::size_t>(member)] = call;
  members_[static_cast<std::size_t>(member)].stage = Stage::arrived;
  if (!all_at(Stage::arrived)) {
    return somebody_gone();
  }
  return compare_calls(calls_, ranks_);
}

void LocalGroup::advance(int member, Stage stage) {
  members_[static_cast<std::size_t>(member)].stage = stage;
  if (all_at(Stage::left)) {
    next_turn();
  }
}

void LocalGroup::next_turn() {
  ++turn_;
  for (Member& member : members_) {
    member.stage = Stage::absent;
  }
}

bool LocalGroup::end_reading() {
  --readers_;
  const bool awaited = readers_ == 0 && failure_.has_value();
  if (awaited) {
    readers_gone_.notify_all();
  }
  return awaited;
}

void LocalGroup::end_moving_all() {
  moving_all_ = false;
  next_turn();
  end_reading();
}

bool LocalGroup::fail(const Failure& failure) {
  if (failure_) {
    return false;
  }
  failure_ = failure;
  return true;
}

std::optional<Failure> LocalGroup::leave(int member, const std::string& text) {
  Member& leaver = members_[static_cast<std::size_t>(member)];
  if (!leaver.gone) {
    leaver.gone = text;
  }
  return failure_ ? std::nullopt : somebody_gone();
}

/// The failure of the current collective if it waits for a member that is gone.
std::optional<Failure> LocalGroup::somebody_gone() const {
  const auto waiting = std::ranges::find_if(
      members_, [](const Member& member) { return member.stage >= Stage::arrived; });
  const auto missing = std::ranges::find_if(members_, [](const Member& member) {
    return member.stage == Stage::absent && member.gone.has_value();
  });
  if (waiting == members_.end() || missing == members_.end() || !missing->gone) {
    return std::nullopt;
  }
  const CollectiveCall& call = calls_[static_cast<std::size_t>(waiting - members_.begin())];
  const int rank = ranks_[static_cast<std::size_t>(missing - members_.begin())];
  return Failure{.code = ErrorCode::peer_failed,
                 .text = describe(call) + " waits for rank " + std::to_string(rank) +
                         ", which has left: " + missing->gone.value_or(""),
                 .rank = rank,
                 .ticket = call.ticket,
                 .bucket = call.bucket};
}

Failure LocalGroup::timed_out(int member, Duration waited) const {
  const auto self = static_cast<std::size_t>(member);
  const CollectiveCall& call = calls_[self];
  std::vector<int> missing;
  std::string actual;
  for (std::size_t other = 0; other < members_.size(); ++other) {
    if (members_[other].stage < members_[self].stage) {
      missing.push_back(ranks_[other]);
      actual += (actual.empty() ? "" : "; ") + absence_of(other);
    }
  }
  const auto waited_ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  return {.code = ErrorCode::timeout,
          .text = "rank " + std::to_string(ranks_[self]) + " waited " + std::to_string(waited_ms) +
                  " ms for " + describe_ranks(missing) + ": expected " + describe_exactly(call) +
                  ", actual: " + actual,
          .rank = missing.empty() ? -1 : missing.front(),
          .ticket = call.ticket,
          .bucket = call.bucket};
}

/// What is known of a member that is awaited.
std::string LocalGroup::absence_of(std::size_t member) const {
  const Member& absent = members_[member];
  const std::string name = "rank " + std::to_string(ranks_[member]);
  if (absent.stage != Stage::absent) {
    return name + " takes part but does not finish";
  }
  if (absent.launched > turn_) {
    return name + " has launched a collective that its stream has not come to";
  }
  if (turn_ == 0) {
    return name + " has launched nothing";
  }
  CollectiveCall last = calls_[member];
  last.label = "";  // it lived until the completion of that collective
  return name + " has launched nothing after " + describe(last);
}

void LocalGroup::await_readers() {
  std::unique_lock lock(mutex_);
  readers_gone_.wait(lock, [this] { return readers_ == 0; });
}

}  // namespace troupe
