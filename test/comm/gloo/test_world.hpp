/// The ranks of a test as one world: what `WorldLink` promises, decided from the launch logs of
/// all, which lie in this process.
#pragma once

#include "troupe/comm/call_check.hpp"
#include "troupe/comm/first_failure.hpp"
#include "troupe/comm/process/world_link.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::test {

class TestWorld {
 public:
  explicit TestWorld(int size) {
    for (int rank = 0; rank < size; ++rank) {
      links_.push_back(std::make_unique<Link>(*this, rank));
    }
  }

  /// Only this rank has failed, and the others do not know: it ends what it has under way.
  void break_off(int rank, Failure failure) {
    links_[static_cast<std::size_t>(rank)]->own.report(std::move(failure));
    const std::lock_guard lock(mutex_);
    for (const auto& [watching, group] : groups_) {
      if (watching == rank) {
        group->interrupt();
      }
    }
  }
  /// From now on collectives that wait for `rank` fail.
  void leave(int rank) { gone_ = rank; }
  Failure abort(Failure failure) { return fail(std::move(failure)); }

  /// No failure any more. There are no communicators.
  void renew() {
    const std::lock_guard lock(mutex_);
    first_ = std::make_unique<FirstFailure>();
    suspicions_.clear();
  }

  WorldLink& link(int rank) { return *links_[static_cast<std::size_t>(rank)]; }
  std::optional<Failure> failure() const { return first_->get(); }
  /// All suspicions so far, in the order of their coming.
  std::vector<Suspicion> suspicions() const {
    const std::lock_guard lock(mutex_);
    return suspicions_;
  }
  int watched() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(groups_.size());
  }

 private:
  class Link final : public WorldLink {
   public:
    Link(TestWorld& world, int rank) : world_(world), rank_(rank) {}
    int rank() const override { return rank_; }
    std::optional<Failure> failure() const override {
      auto failure = own.get();
      return failure ? failure : world_.first_->get();
    }
    Failure suspect(Suspicion suspicion) override { return world_.decide(std::move(suspicion)); }
    void abort(const Failure& failure) override { world_.fail(failure); }
    std::optional<Failure> begins(const GroupName& group, const LoggedLaunch& launch) override {
      const int gone = world_.gone_;
      if (gone < 0 || std::ranges::find(group.ranks, gone) == group.ranks.end()) {
        return failure();
      }
      return world_.fail({.code = ErrorCode::peer_failed,
                          .text = describe(launch.call.view()) + " waits for rank " +
                                  std::to_string(gone) + ", which has left",
                          .rank = gone,
                          .ticket = launch.call.ticket});
    }
    void watch(WatchedGroup& group) override {
      const std::lock_guard lock(world_.mutex_);
      world_.groups_.emplace_back(rank_, &group);
      if (failure()) {
        group.interrupt();
      }
    }
    void forget(WatchedGroup& group) override {
      const std::lock_guard lock(world_.mutex_);
      std::erase_if(world_.groups_, [&](const auto& entry) { return entry.second == &group; });
    }

    FirstFailure own;

   private:
    TestWorld& world_;
    const int rank_;
  };

  Failure fail(Failure failure) {
    Failure first = first_->report(std::move(failure));
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, group] : groups_) {
      group->interrupt();
    }
    return first;
  }

  Failure decide(Suspicion suspicion) {
    {
      const std::lock_guard lock(mutex_);
      suspicions_.push_back(suspicion);
    }
    if (suspicion.kind == Suspicion::Kind::mismatch) {
      return fail(mismatch(suspicion));
    }
    const char* const what = suspicion.kind == Suspicion::Kind::timeout      ? " waited for "
                             : suspicion.kind == Suspicion::Kind::connection ? " lost "
                                                                             : " dropped ";
    return fail({.code = suspicion.kind == Suspicion::Kind::timeout ? ErrorCode::timeout
                                                                    : ErrorCode::peer_failed,
                 .text = "rank " + std::to_string(suspicion.rank) + what + "rank " +
                         std::to_string(suspicion.peer) + " in " + describe(suspicion.call.view()) +
                         ": " + suspicion.text,
                 .rank = suspicion.peer,
                 .ticket = suspicion.call.ticket,
                 .bucket = suspicion.call.bucket});
  }

  /// As one process would say it, from the calls of all members.
  Failure mismatch(const Suspicion& suspicion) const {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    for (;;) {
      std::vector<LoggedCall> logged;
      for (const int member : suspicion.group.ranks) {
        if (auto call = call_of(member, suspicion)) {
          logged.push_back(*std::move(call));
        }
      }
      if (logged.size() == suspicion.group.ranks.size()) {
        std::vector<CollectiveCall> calls;
        for (const LoggedCall& call : logged) {
          calls.push_back(call.view());
        }
        return compare_calls(calls, suspicion.group.ranks)
            .value_or(Failure{.text = "all have launched the same"});
      }
      if (std::chrono::steady_clock::now() >= give_up) {
        return {.text = "not all have launched: " + suspicion.text};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
  }

  std::optional<LoggedCall> call_of(int member, const Suspicion& suspicion) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, group] : groups_) {
      if (rank == member && group->log().group() == suspicion.group) {
        for (const LoggedLaunch& launch : group->log().position().launches) {
          if (launch.turn == suspicion.turn) {
            return launch.call;
          }
        }
      }
    }
    return std::nullopt;
  }

  std::unique_ptr<FirstFailure> first_ = std::make_unique<FirstFailure>();
  std::vector<std::unique_ptr<Link>> links_;

  std::atomic<int> gone_{-1};

  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::pair<int, WatchedGroup*>> groups_;
  std::vector<Suspicion> suspicions_;
};

}  // namespace troupe::test
