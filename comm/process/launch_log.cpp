#include "troupe/comm/process/launch_log.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

CollectiveCall LoggedCall::view() const {
  CollectiveCall call;
  call.op = op;
  call.ticket = ticket;
  call.runtime = runtime;
  call.bucket = bucket;
  call.label = label.c_str();
  call.dtype = dtype;
  call.numel = numel;
  call.root = root;
  return call;
}

LoggedCall logged(const CollectiveCall& call) {
  return {call.op,    call.ticket, call.runtime, call.bucket,
          call.label, call.dtype,  call.numel,   call.root};
}

std::uint64_t LaunchLog::launch(const CollectiveCall& call) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t turn = launched_++;
  launches_.push_back({turn, logged(call), LaunchStage::launched});
  while (launches_.size() > kept && launches_.front().stage == LaunchStage::ended) {
    launches_.pop_front();
  }
  return turn;
}

void LaunchLog::begin(std::uint64_t turn) {
  advance(turn, LaunchStage::begun);
}

void LaunchLog::end(std::uint64_t turn) {
  advance(turn, LaunchStage::ended);
}

void LaunchLog::advance(std::uint64_t turn, LaunchStage stage) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(launches_, turn, &LoggedLaunch::turn);
  if (found != launches_.end()) {
    found->stage = std::max(found->stage, stage);
  }
}

GroupPosition LaunchLog::position() const {
  const std::lock_guard lock(mutex_);
  GroupPosition position{.group = group_, .launched = launched_, .launches = {}};
  const std::size_t told = std::min(launches_.size(), told_max);
  position.launches.assign(launches_.begin(),
                           launches_.begin() + static_cast<std::ptrdiff_t>(told));
  return position;
}

std::optional<LoggedLaunch> LaunchLog::awaiting() const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(launches_, LaunchStage::begun, &LoggedLaunch::stage);
  return found == launches_.end() ? std::nullopt : std::optional{*found};
}

}  // namespace troupe
