// How a process comes to its world, and how it leaves it.
#include "troupe/comm/call_check.hpp"
#include "troupe/comm/process/process_world.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <thread>
#include <utility>

namespace troupe {

namespace {

TimePoint now() {
  return Clock::steady().now();
}

std::int64_t ms_since(TimePoint began) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(now() - began).count();
}

}  // namespace

void ProcessWorld::join() {
  const TimePoint began = now();
  const TimePoint deadline = began + options_.join_timeout;
  const auto silence_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.silence_limit).count();
  const DiedEvent will{options_.rank,
                       "rank " + std::to_string(options_.rank) + " (" + options_.name +
                           ") is gone: its connection to the store ended, or it "
                           "gave no sign of life for " +
                           std::to_string(silence_ms) + " ms",
                       process_};
  const auto left = store_.leave_will(WorldLog::name, encode(will), options_.silence_limit,
                                      options_.reconnect_grace, deadline);
  if (!left) {
    throw Error(store_lost(left.failure().text));
  }
  log_.start();
  log_.say(JoinedEvent{options_.rank, options_.world_size, options_.name, process_});
  const auto settled = [this](const WorldHistory& history) {
    // Until its own word has come in the log it does not know whether it is a rank of this world.
    return history.refusal(process_) || failed_.load() ||
           (history.all_joined() && history.is_member(options_.rank, process_));
  };
  const auto not_joined = [this] {
    return log_.of_history([](const WorldHistory& history) { return history.not_joined(); });
  };
  if (!log_.wait(settled, std::min(deadline, began + options_.patience)) && options_.on_waiting) {
    options_.on_waiting("rank " + std::to_string(options_.rank) + " waits for " +
                        describe_ranks(not_joined()) + " to join the world");
  }
  if (!log_.wait(settled, deadline)) {
    const std::vector<int> missing = not_joined();
    log_.say(FailedEvent{0,
                         {.code = ErrorCode::timeout,
                          .text = "rank " + std::to_string(options_.rank) + " waited " +
                                  std::to_string(ms_since(began)) + " ms for " +
                                  describe_ranks(missing) + " to join the world",
                          .rank = missing.empty() ? -1 : missing.front()}});
    if (!log_.wait(settled, now() + WorldLog::store_limit)) {
      fail(0, store_lost("it does not answer"));
    }
  }
  if (const auto refusal = log_.of_history(
          [this](const WorldHistory& history) { return history.refusal(process_); })) {
    fail(0, *refusal);
  }
  if (auto failed = failure()) {
    throw Error(*std::move(failed));
  }
  renew(1);
}

void ProcessWorld::leave(int rank, std::string text) {
  DepartedEvent event{rank, std::move(text), {}};
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [group, launched] : launched_) {
      event.launched.push_back({group, launched});
    }
  }
  for (const GroupPosition& group : position().groups) {
    event.launched.push_back({group.group, group.launched});
  }
  log_.say(std::move(event));
}

void ProcessWorld::await_departures() {
  const TimePoint began = now();
  const auto over = [this](const WorldHistory& history) {
    return history.all_departed() || failed_.load();
  };
  if (log_.wait(over, began + options_.timeout)) {
    return;
  }
  std::vector<int> missing =
      log_.of_history([](const WorldHistory& history) { return history.living(); });
  log_.of_history([&](const WorldHistory& history) {
    std::erase_if(missing, [&](int rank) { return history.departed().contains(rank); });
  });
  static_cast<void>(report({.code = ErrorCode::timeout,
                            .text = "rank " + std::to_string(options_.rank) + " waited " +
                                    std::to_string(ms_since(began)) + " ms for " +
                                    describe_ranks(missing) + " to come to the end, too",
                            .rank = missing.empty() ? -1 : missing.front()}));
}

/// Nothing more will come from this rank. The store stays until the others have said that, too;
/// they stay until nobody can connect to it any more, and it goes when they have said that they are
/// gone: so their next world cannot begin with the store of this one.
void ProcessWorld::linger() {
  const std::string own = std::to_string(options_.rank);
  const bool stranger = log_.of_history([this](const WorldHistory& history) {
    return history.all_joined() && !history.is_member(options_.rank, process_);
  });
  if (stranger) {
    return;  // a rank of another world; its will is nobody's here
  }
  log_.set("done/" + own, "");
  log_.clerk().once([this] {
    if (!log_.lost()) {
      static_cast<void>(store_.revoke_will(now() + WorldLog::store_limit));
    }
  });
  const bool failed = failed_.load();
  const TimePoint deadline =
      now() + (failed ? options_.failed_linger_limit : options_.linger_limit);
  const std::string closed = "closed";
  if (options_.rank == options_.store_rank) {
    await_all("done/", deadline);
    if (options_.close_store) {
      options_.close_store();
    }
    log_.set(closed, "");
    if (!failed) {
      await_all("gone/", deadline);
    }
  } else if (!failed && options_.store_rank >= 0 && !log_.lost()) {
    static_cast<void>(store_.wait(std::array{std::string(closed)}, deadline));
    log_.set("gone/" + own, "");
  }
}

/// Waits until all other ranks that live have set their key, or the store is lost. Who has not
/// joined yet is waited for as well: it would look for the store until its own deadline, and has to
/// hear why there is no world.
void ProcessWorld::await_all(const std::string& prefix, TimePoint deadline) {
  constexpr std::chrono::milliseconds look_interval{5};
  for (; now() < deadline; std::this_thread::sleep_for(look_interval)) {
    std::vector<int> others = log_.of_history([](const WorldHistory& history) {
      std::vector<int> ranks = history.living();
      std::ranges::copy(history.not_joined(), std::back_inserter(ranks));
      return ranks;
    });
    std::erase(others, options_.rank);
    if (log_.lost() || log_.look(prefix, others).size() == others.size()) {
      return;
    }
  }
}

}  // namespace troupe
