#include "troupe/comm/process/process_world.hpp"

#include "troupe/comm/call_check.hpp"
#include "troupe/comm/store/handshake.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace troupe {

namespace {

TimePoint now() {
  return Clock::steady().now();
}

}  // namespace

ProcessWorld::ProcessWorld(ProcessWorldOptions options, Store& store, GroupTransport& transport)
    : options_(std::move(options)),
      process_(store::random_number()),
      store_(store),
      transport_(transport),
      log_(store, options_.world_size, options_.silence_limit, [this] { on_change(); }),
      rendezvous_(log_, options_.rank, options_.world_size, [this](const std::string& why) {
        return store_lost(why);
      }) {
  try {
    join();
  } catch (...) {
    linger();
    log_.close();
    throw;
  }
}

ProcessWorld::~ProcessWorld() {
  linger();
  log_.close();
}

std::uint64_t ProcessWorld::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

std::unique_ptr<Communicator> ProcessWorld::communicator(int rank,
                                                         std::vector<int> ranks,
                                                         int channel) {
  const bool ascending =
      std::ranges::adjacent_find(ranks, std::ranges::greater_equal()) == ranks.end();
  if (rank != options_.rank || ranks.empty() || !ascending || ranks.front() < 0 ||
      ranks.back() >= options_.world_size || !std::ranges::binary_search(ranks, rank)) {
    throw Error({.code = ErrorCode::bad_configuration,
                 .text = "the group of rank " + std::to_string(rank) + " in a world of " +
                         std::to_string(options_.world_size) +
                         " is not an ascending list of ranks that includes it"});
  }
  return transport_.connect(epoch(), {std::move(ranks), channel}, *this);
}

// ---- failures -----------------------------------------------------------------------------------

/// After each entry of the log, when the log is lost, and in a new epoch.
void ProcessWorld::on_change() {
  const std::uint64_t current = epoch();
  const auto lost = log_.lost();
  std::optional<Failure> failure;
  std::optional<Failure> waits_in_vain;
  bool for_good = false;
  bool undecided = false;
  log_.of_history([&](const WorldHistory& history) {
    failure = history.failure(current);
    for_good = history.ended();
    undecided = current > 0 && history.undecided(current);
    if (failure || history.departed().empty()) {
      return;
    }
    const std::lock_guard lock(mutex_);
    for (const auto& [group, launch] : begun_) {
      if (!waits_in_vain) {
        waits_in_vain = awaits_departed(group, launch, history.departed());
      }
    }
  });
  if (failure) {
    fail(current, *failure, for_good);
  } else if (lost) {
    fail(current, store_lost(*lost));
  } else if (undecided) {
    begin_inquest(current);
  } else if (waits_in_vain) {
    log_.say(FailedEvent{current, *std::move(waits_in_vain)});
  }
  rendezvous_.notify();
}

void ProcessWorld::fail(std::uint64_t epoch, const Failure& failure, bool for_good) {
  {
    const std::lock_guard lock(mutex_);
    if (epoch != epoch_) {
      return;
    }
    if (ended_ && !for_good) {
      return;  // the own word that ends the world has not come in the log yet
    }
    failure_ = failure;  // the first one, or what ends the world
    if (failed_.exchange(true)) {
      return;
    }
  }
  interrupt_groups();
  log_.notify();
  if (epoch > 0 && options_.on_failure) {
    options_.on_failure(epoch, failure);
  }
}

void ProcessWorld::interrupt_groups() const {
  const std::lock_guard lock(groups_mutex_);
  for (const auto& [group, epoch] : groups_) {
    group->interrupt();
  }
}

std::optional<Failure> ProcessWorld::failure() const {
  if (!failed_.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  return failure_;
}

Failure ProcessWorld::report(Failure failure) {
  if (auto first = this->failure()) {
    return *std::move(first);
  }
  log_.say(FailedEvent{epoch(), failure});
  return await_failure(WorldLog::store_limit, failure);
}

void ProcessWorld::abort(const Failure& failure) {
  if (!failed_.load()) {
    log_.say(FailedEvent{epoch(), failure});
  }
}

/// The world's failure; `otherwise` if the store does not tell in time.
Failure ProcessWorld::await_failure(Duration limit, const Failure& otherwise) {
  const auto failed = [this](const WorldHistory&) { return failed_.load(); };
  if (!log_.wait(failed, now() + limit)) {
    fail(epoch(), otherwise);
  }
  return failure().value_or(otherwise);
}

Failure ProcessWorld::store_lost(const std::string& why) const {
  const bool served_by_peer = options_.store_rank >= 0 && options_.store_rank != options_.rank;
  Failure failure{
      .code = ErrorCode::peer_failed,
      .text = "rank " + std::to_string(options_.rank) + " has lost the store of the world" +
              (served_by_peer ? ", which rank " + std::to_string(options_.store_rank) + " serves"
                              : "") +
              ": " + why,
      .rank = options_.store_rank};
  const std::lock_guard lock(groups_mutex_);
  for (const auto& [group, epoch] : groups_) {
    if (const auto launch = group->log().awaiting(); launch && failure.ticket == 0) {
      failure.text += "; it waits in " + describe(launch->call.view());
      failure.ticket = launch->call.ticket;
      failure.bucket = launch->call.bucket;
    }
  }
  return failure;
}

void ProcessWorld::renew(std::uint64_t epoch) {
  {
    const std::lock_guard lock(mutex_);
    if (epoch <= epoch_) {
      return;
    }
    epoch_ = epoch;
    failed_.store(false);
    failure_.reset();
    inquest_ = false;
    begun_.clear();
    launched_.clear();
  }
  log_.clerk().once([this] { on_change(); });  // it may have failed on another rank already
}

void ProcessWorld::end(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    failed_.store(true);
    ended_ = true;
  }
  interrupt_groups();
  log_.notify();
  log_.say(EndedEvent{failure});
}

// ---- what communicators see and say -------------------------------------------------------------

Failure ProcessWorld::suspect(Suspicion suspicion) {
  if (auto first = failure()) {
    return *std::move(first);
  }
  suspicion.rank = options_.rank;
  Inquest own;
  own.suspicions = {&suspicion, 1};
  const Failure alone = diagnose(own);
  log_.say(SuspectedEvent{epoch(), std::move(suspicion)});
  return await_failure(2 * options_.inquest_limit + WorldLog::store_limit, alone);
}

std::optional<Failure> ProcessWorld::begins(const GroupName& group, const LoggedLaunch& launch) {
  std::optional<Failure> in_vain;
  log_.of_history([&](const WorldHistory& history) {
    in_vain = awaits_departed(group, launch, history.departed());
    const std::lock_guard lock(mutex_);  // with the history's: no departure is overlooked
    begun_.insert_or_assign(group, launch);
  });
  if (!in_vain) {
    return failure();
  }
  return report(*std::move(in_vain));
}

void ProcessWorld::watch(WatchedGroup& group) {
  const std::lock_guard lock(groups_mutex_);
  groups_.emplace(&group, epoch());
  if (failed_.load()) {
    group.interrupt();
  }
}

void ProcessWorld::forget(WatchedGroup& group) {
  const GroupPosition position = group.log().position();
  const std::lock_guard lock(groups_mutex_);
  const std::uint64_t of_epoch = groups_.at(&group);
  groups_.erase(&group);
  const std::lock_guard state_lock(mutex_);
  if (of_epoch == epoch_) {
    launched_[position.group] = position.launched;
  }
}

RankPosition ProcessWorld::position() const {
  RankPosition position{.rank = options_.rank, .groups = {}};
  const std::uint64_t current = epoch();
  const std::lock_guard lock(groups_mutex_);
  for (const auto& [group, epoch] : groups_) {
    if (epoch == current) {
      position.groups.push_back(group->log().position());
    }
  }
  return position;
}

}  // namespace troupe
