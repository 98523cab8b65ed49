/// Communicators of a world of processes whose ranks are threads of one test: they keep the rules
/// of `WorldLink`, and move payload in shared memory. Connections can be cut.
#pragma once

#include "troupe/comm/call_check.hpp"
#include "troupe/comm/host_stream.hpp"
#include "troupe/comm/local_transfer.hpp"
#include "troupe/comm/process/world_link.hpp"
#include "troupe/comm/wake_list.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::test {

/// What the members of one group share.
struct SharedGroup {
  struct Turn {
    std::map<int, CollectiveCall> calls;  ///< by member, of those that have come
    bool done = false;
  };

  WakeList listeners;
  std::mutex mutex;  // guards what follows
  std::map<std::uint64_t, Turn> turns;
  std::set<int> cut;  ///< world ranks
};

/// What the ranks of one test share.
class SharedHub {
 public:
  std::shared_ptr<SharedGroup> group(std::uint64_t epoch, const GroupName& name) {
    const std::lock_guard lock(mutex_);
    auto& group = groups_[{epoch, name}];
    if (!group) {
      group = std::make_shared<SharedGroup>();
    }
    return group;
  }

  /// All connections of a rank are lost.
  void cut(int rank) {
    const std::lock_guard lock(mutex_);
    for (auto& [key, group] : groups_) {
      {
        const std::lock_guard group_lock(group->mutex);
        group->cut.insert(rank);
      }
      group->listeners.notify_all();
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, GroupName>, std::shared_ptr<SharedGroup>> groups_;
};

class SharedCommunicator final : public Communicator, private WatchedGroup {
 public:
  SharedCommunicator(std::shared_ptr<SharedGroup> group,
                     const GroupName& name,
                     WorldLink& link,
                     Duration timeout)
      : group_(std::move(group)), log_(name), link_(link), timeout_(timeout) {
    link_.watch(*this);
  }
  ~SharedCommunicator() override { link_.forget(*this); }

  int rank() const override {
    const auto& ranks = log_.group().ranks;
    return static_cast<int>(std::ranges::find(ranks, link_.rank()) - ranks.begin());
  }
  int size() const override { return static_cast<int>(log_.group().ranks.size()); }
  void abort(const Failure& failure) override { link_.abort(failure); }

  Result<void> launch(const CollectiveCall& call, Stream& stream) override {
    if (auto wrong = check_call(call, rank(), size())) {
      return *std::move(wrong);
    }
    if (auto failure = link_.failure()) {
      return *std::move(failure);
    }
    auto& host = dynamic_cast<HostStream&>(stream);
    const auto operation = std::make_shared<Operation>(*this, call, host, log_.launch(call));
    host.enqueue([operation] { return operation->run(); });
    return {};
  }

 private:
  class Operation {
   public:
    Operation(SharedCommunicator& own,
              const CollectiveCall& call,
              HostStream& stream,
              std::uint64_t turn)
        : own_(own), call_(call), stream_(stream), turn_(turn) {}
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    ~Operation() {
      if (began_) {
        own_.group_->listeners.remove(stream_);
      }
      if (!ended_) {
        const auto failure = stream_.failure();
        own_.suspect(Suspicion::Kind::dropped, call_, turn_, {},
                     failure ? failure->text : "its stream ended");
      }
      own_.log_.end(turn_);
    }

    Result<Progress> run() {
      Result<Progress> result = advance();
      ended_ = !result || result.value() == Progress::done;
      return result;
    }

   private:
    Result<Progress> advance() {
      SharedGroup& group = *own_.group_;
      if (!std::exchange(began_, true)) {
        group.listeners.add(stream_);
        since_ = Clock::steady().now();
        own_.log_.begin(turn_);
        if (auto failure = own_.link_.begins(own_.log_.group(), {turn_, logged(call_)})) {
          return *std::move(failure);
        }
      }
      int differs = -1;
      int cut = -1;
      {
        const std::lock_guard lock(group.mutex);
        SharedGroup::Turn& turn = group.turns[turn_];
        if (turn.done) {
          return Progress::done;
        }
        if (auto failure = own_.link_.failure()) {
          return *std::move(failure);
        }
        turn.calls.emplace(own_.rank(), call_);
        differs = other_call(turn);
        cut = lost_peer(turn);
        if (differs < 0 && turn.calls.size() == static_cast<std::size_t>(own_.size())) {
          move(turn);
          group.listeners.notify_all(&stream_);
          return Progress::done;
        }
      }
      const Duration waited = Clock::steady().now() - since_;
      if (differs >= 0) {
        return own_.suspect(Suspicion::Kind::mismatch, call_, turn_, {}, "", differs);
      }
      if (cut >= 0) {
        return own_.suspect(Suspicion::Kind::connection, call_, turn_, {}, "was cut", cut);
      }
      if (waited >= own_.timeout_) {
        return own_.suspect(Suspicion::Kind::timeout, call_, turn_, waited, "");
      }
      return Progress::blocked;
    }

    /// World rank of a member that has brought another call, or -1.
    int other_call(const SharedGroup::Turn& turn) const {
      for (const auto& [member, call] : turn.calls) {
        const std::vector<CollectiveCall> both{call, call_};
        const std::vector<int> ranks{0, 1};
        if (compare_calls(both, ranks)) {
          return own_.log_.group().ranks[static_cast<std::size_t>(member)];
        }
      }
      return -1;
    }

    int lost_peer(const SharedGroup::Turn& turn) const {
      for (const int rank : own_.group_->cut) {
        const auto& ranks = own_.log_.group().ranks;
        const auto place = std::ranges::find(ranks, rank);
        if (place != ranks.end() && rank != own_.link_.rank() &&
            !turn.calls.contains(static_cast<int>(place - ranks.begin()))) {
          return rank;
        }
      }
      return -1;
    }

    void move(SharedGroup::Turn& turn) const {
      std::vector<CollectiveCall> calls;
      for (const auto& [member, call] : turn.calls) {
        calls.push_back(call);
      }
      for (const TransferRound round : {TransferRound::first, TransferRound::second}) {
        for (int member = 0; member < own_.size(); ++member) {
          if (round == TransferRound::first || has_second_round(call_.op)) {
            transfer(calls, member, round);
          }
        }
      }
      turn.done = true;
    }

    SharedCommunicator& own_;
    const CollectiveCall call_;
    HostStream& stream_;
    const std::uint64_t turn_;
    bool began_ = false;
    bool ended_ = false;
    TimePoint since_{};
  };

  Failure suspect(Suspicion::Kind kind,
                  const CollectiveCall& call,
                  std::uint64_t turn,
                  Duration waited,
                  std::string text,
                  int peer = -1) {
    Suspicion suspicion;
    suspicion.kind = kind;
    suspicion.group = log_.group();
    suspicion.turn = turn;
    suspicion.call = logged(call);
    suspicion.waited_ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
    suspicion.text = std::move(text);
    suspicion.peer = peer;
    return link_.suspect(std::move(suspicion));
  }

  void interrupt() override { group_->listeners.notify_all(); }
  const LaunchLog& log() const override { return log_; }

  const std::shared_ptr<SharedGroup> group_;
  LaunchLog log_;
  WorldLink& link_;
  const Duration timeout_;
};

class SharedTransport final : public GroupTransport {
 public:
  SharedTransport(std::shared_ptr<SharedHub> hub, Duration timeout)
      : hub_(std::move(hub)), timeout_(timeout) {}

  std::unique_ptr<Communicator> connect(std::uint64_t epoch,
                                        const GroupName& group,
                                        WorldLink& link) override {
    return std::make_unique<SharedCommunicator>(hub_->group(epoch, group), group, link, timeout_);
  }

 private:
  std::shared_ptr<SharedHub> hub_;
  Duration timeout_;
};

}  // namespace troupe::test
