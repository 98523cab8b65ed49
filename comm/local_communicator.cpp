#include "troupe/comm/local_communicator.hpp"

#include "troupe/comm/call_check.hpp"
#include "troupe/comm/host_stream.hpp"
#include "troupe/comm/local_group.hpp"
#include "troupe/comm/local_transfer.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace troupe {

// ---- what the ranks share -----------------------------------------------------------------------

/// Locks: the world's, then a group's, then that of the first failure. Never the world's with a
/// group's held.
class LocalWorld::State {
 public:
  State(int world_size, Duration timeout, const Clock& clock, std::int64_t one_mover_bytes_max)
      : world_size_(world_size),
        timeout_(timeout),
        clock_(clock),
        one_mover_bytes_max_(one_mover_bytes_max) {}

  /// The same world without ranks that have met or failed.
  std::shared_ptr<State> next() const {
    return std::make_shared<State>(world_size_, timeout_, clock_, one_mover_bytes_max_);
  }

  int world_size() const { return world_size_; }
  Duration timeout() const { return timeout_; }
  std::int64_t one_mover_bytes_max() const { return one_mover_bytes_max_; }
  TimePoint now() const { return clock_.now(); }
  FirstFailure& first_failure() { return first_failure_; }

  LocalGroup& group(const std::vector<int>& ranks, int channel) {
    const std::lock_guard lock(mutex_);
    auto& group = groups_[{ranks, channel}];
    if (!group) {
      group = std::make_unique<LocalGroup>(ranks);
      const std::lock_guard group_lock(group->mutex());
      if (const auto failure = first_failure_.get()) {
        group->fail(*failure);
      }
      for (const auto& [rank, text] : gone_) {
        if (const int member = group->member_of(rank); member >= 0) {
          std::ignore = group->leave(member, text);  // nothing waits yet
        }
      }
    }
    return *group;
  }

  void abort(const Failure& failure) {
    const Failure first = first_failure_.report(failure);
    const std::lock_guard lock(mutex_);
    for (auto& [key, group] : groups_) {
      {
        const std::lock_guard group_lock(group->mutex());
        group->fail(first);
      }
      group->listeners().notify_all();
    }
  }

  /// Sets the group's failure under its lock, before anybody can act on the state that is wrong,
  /// then tells the others.
  void fail(LocalGroup& group, std::unique_lock<std::mutex>& lock, Failure failure) {
    const Failure first = first_failure_.report(std::move(failure));
    group.fail(first);
    lock.unlock();
    abort(first);
  }

  void leave(int rank, std::string text) {
    std::optional<Failure> failure;
    {
      const std::lock_guard lock(mutex_);
      const std::string& why = gone_.emplace(rank, std::move(text)).first->second;
      for (auto& [key, group] : groups_) {
        if (const int member = group->member_of(rank); member >= 0) {
          const std::lock_guard group_lock(group->mutex());
          auto waiting = group->leave(member, why);
          if (waiting && !failure) {
            failure = std::move(waiting);
          }
        }
      }
    }
    if (failure) {
      abort(*failure);
    }
  }

 private:
  const int world_size_;
  const Duration timeout_;
  const Clock& clock_;
  const std::int64_t one_mover_bytes_max_;
  FirstFailure first_failure_;

  std::mutex mutex_;  // guards the group below; groups live as long as the state
  std::map<std::pair<std::vector<int>, int>, std::unique_ptr<LocalGroup>> groups_;
  std::map<int, std::string> gone_;
};

// ---- one collective on one rank -----------------------------------------------------------------

/// An operation of the rank's stream.
class LocalWorld::Operation {
 public:
  Operation(std::shared_ptr<State> world,
            LocalGroup& group,
            int member,
            std::uint64_t turn,
            const CollectiveCall& call,
            HostStream& stream)
      : world_(std::move(world)),
        group_(group),
        member_(member),
        turn_(turn),
        call_(call),
        stream_(stream) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  ~Operation() {
    if (!ended_) {
      dropped();
    }
    if (listening_) {
      group_.listeners().remove(stream_);
    }
  }

  Result<Progress> run() {
    if (!listening_) {
      group_.listeners().add(stream_);
      listening_ = true;
    }
    for (;;) {
      std::unique_lock lock(group_.mutex());
      if (group_.turn() > turn_) {
        ended_ = true;
        return Progress::done;
      }
      if (const auto& failure = group_.failure()) {
        if (group_.readers() > 0) {
          return Progress::blocked;
        }
        ended_ = true;
        return *failure;
      }
      if (group_.turn() < turn_) {
        return Progress::blocked;  // an earlier one, on another stream
      }
      if (group_.moving_all()) {
        return Progress::blocked;
      }
      const Stage stage = group_.stage(member_);
      if (stage == Stage::absent) {
        arrive(lock);
      } else if (stage != Stage::left && group_.all_at(stage)) {
        move_payload(lock, stage);
      } else if (const Duration waited = world_->now() - since_; waited >= world_->timeout()) {
        world_->fail(group_, lock, group_.timed_out(member_, waited));
      } else {
        return Progress::blocked;
      }
    }
  }

 private:
  void arrive(std::unique_lock<std::mutex>& lock) {
    since_ = world_->now();
    if (auto failure = group_.arrive(member_, call_)) {
      world_->fail(group_, lock, *std::move(failure));
    } else if (group_.all_at(Stage::arrived)) {
      if (bytes_read(call_, group_.size()) <= world_->one_mover_bytes_max()) {
        move_all(lock);
      } else {
        lock.unlock();
      }
      group_.listeners().notify_all(&stream_);
    }
  }

  /// The last to arrive does everybody's part. The others come to know when the turn is over.
  void move_all(std::unique_lock<std::mutex>& lock) {
    group_.begin_moving_all();
    lock.unlock();
    const std::span<const CollectiveCall> calls = group_.calls();
    for (int member = 0; member < group_.size(); ++member) {
      transfer(calls, member, TransferRound::first);
    }
    for (int member = 0; has_second_round(call_.op) && member < group_.size(); ++member) {
      transfer(calls, member, TransferRound::second);
    }
    lock.lock();
    group_.end_moving_all();  // whoever awaits this is notified in any case
    lock.unlock();
  }

  void move_payload(std::unique_lock<std::mutex>& lock, Stage stage) {
    const bool first = stage == Stage::arrived;
    const Stage next = first && has_second_round(call_.op) ? Stage::halfway : Stage::left;
    group_.begin_reading();
    lock.unlock();
    transfer(group_.calls(), member_, first ? TransferRound::first : TransferRound::second);
    lock.lock();
    since_ = world_->now();
    const bool awaited = group_.end_reading();
    group_.advance(member_, next);
    const bool last = group_.turn() > turn_ || group_.all_at(next);
    lock.unlock();
    if (awaited || last) {
      group_.listeners().notify_all(&stream_);
    }
  }

  /// The stream has failed or is stopped. Peers would wait in vain; and those that read this rank's
  /// buffers must be out before its owner may go on.
  void dropped() {
    {
      const std::lock_guard lock(group_.mutex());
      if (group_.turn() > turn_) {
        return;  // it was complete, only not looked at any more
      }
    }
    const auto failure = stream_.failure();
    const int rank = group_.world_rank(member_);
    world_->abort({.code = ErrorCode::peer_failed,
                   .text = "rank " + std::to_string(rank) + " dropped " + describe(call_) + ": " +
                           (failure ? failure->text : "its stream ended"),
                   .rank = rank,
                   .ticket = call_.ticket,
                   .bucket = call_.bucket});
    group_.await_readers();
  }

  const std::shared_ptr<State> world_;
  LocalGroup& group_;
  const int member_;
  const std::uint64_t turn_;
  const CollectiveCall call_;
  HostStream& stream_;

  bool listening_ = false;
  bool ended_ = false;
  TimePoint since_{};  ///< when this rank began to wait at its stage
};

// ---- one rank's communicator --------------------------------------------------------------------

class LocalWorld::Endpoint final : public Communicator {
 public:
  Endpoint(std::shared_ptr<State> world, LocalGroup& group, int member)
      : world_(std::move(world)), group_(group), member_(member) {}

  int rank() const override { return member_; }
  int size() const override { return group_.size(); }

  Result<void> launch(const CollectiveCall& call, Stream& stream) override {
    if (auto failure = check_call(call, member_, group_.size())) {
      return *std::move(failure);
    }
    auto* host_stream = dynamic_cast<HostStream*>(&stream);
    if (host_stream == nullptr) {
      return Failure{.code = ErrorCode::misuse,
                     .text = describe(call) + " cannot run on stream '" + stream.name() +
                             "': the local communicator needs a worker stream of a host device",
                     .ticket = call.ticket,
                     .bucket = call.bucket};
    }
    if (auto failure = world_->first_failure().get()) {
      return *std::move(failure);
    }
    std::uint64_t turn = 0;
    {
      const std::lock_guard lock(group_.mutex());
      turn = group_.launch(member_);
    }
    auto operation = std::make_shared<Operation>(world_, group_, member_, turn, call, *host_stream);
    host_stream->enqueue([operation = std::move(operation)] { return operation->run(); });
    return {};
  }

  void abort(const Failure& failure) override { world_->abort(failure); }

 private:
  const std::shared_ptr<State> world_;
  LocalGroup& group_;
  const int member_;
};

// ---- the world ----------------------------------------------------------------------------------

LocalWorld::LocalWorld(int world_size,
                       Duration timeout,
                       const Clock& clock,
                       std::int64_t one_mover_bytes_max)
    : rendezvous_(world_size),
      state_(std::make_shared<State>(world_size, timeout, clock, one_mover_bytes_max)) {}

LocalWorld::~LocalWorld() = default;

std::shared_ptr<LocalWorld::State> LocalWorld::current() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

int LocalWorld::world_size() const {
  return current()->world_size();
}

std::unique_ptr<Communicator> LocalWorld::communicator(int rank,
                                                       std::vector<int> ranks,
                                                       int channel) {
  const std::shared_ptr<State> state = current();
  const bool ascending =
      std::ranges::adjacent_find(ranks, std::ranges::greater_equal()) == ranks.end();
  if (ranks.empty() || !ascending || ranks.front() < 0 || ranks.back() >= state->world_size() ||
      !std::ranges::binary_search(ranks, rank)) {
    throw Error({.code = ErrorCode::bad_configuration,
                 .text = "the group of rank " + std::to_string(rank) + " in a world of " +
                         std::to_string(state->world_size()) +
                         " is not an ascending list of ranks that includes it"});
  }
  LocalGroup& group = state->group(ranks, channel);
  return std::make_unique<Endpoint>(state, group, group.member_of(rank));
}

void LocalWorld::abort(const Failure& failure) {
  current()->abort(failure);
}

void LocalWorld::leave(int rank, std::string text) {
  current()->leave(rank, std::move(text));
}

void LocalWorld::renew(std::uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  if (epoch_ < epoch) {
    epoch_ = epoch;
    state_ = state_->next();
  }
}

FirstFailure& LocalWorld::first_failure() {
  return current()->first_failure();
}

}  // namespace troupe
