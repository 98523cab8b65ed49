/// The actors of one rank as the rooms above see them; no CAF in sight.
///
/// `ActorSystem` is shared by the ranks of a process. `RankActors` are a device's comm actor and
/// supervisor and the comm thread; `RuntimeActors` are a runtime's scheduler and buckets.
///
/// Thread rules: the calls of one rank's objects form one sequence (the trainer's), except where
/// noted. Errors: waiting calls throw `Error` with the world's first failure.
#pragma once

#include "troupe/actors/messages.hpp"
#include "troupe/actors/rank_state.hpp"
#include "troupe/actors/runtime_setup.hpp"
#include "troupe/core/schedule.hpp"

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace troupe {

/// Who runs the actors.
enum class Executor : std::uint8_t {
  threads,      ///< the sending threads, and one comm thread per rank
  coordinator,  ///< CAF's test coordinator, message by message (single-thread tests)
};

class MessageObserver;  // caf.hpp

class ActorSystem {
 public:
  /// `observer`: Executor::coordinator only; sees every message as it is sent. Outlives the system.
  explicit ActorSystem(Executor executor = Executor::threads, MessageObserver* observer = nullptr);
  ~ActorSystem();
  ActorSystem(const ActorSystem&) = delete;
  ActorSystem& operator=(const ActorSystem&) = delete;

  // Executor::coordinator: the actors with mail, by how long they have had some.

  std::size_t runnable() const;
  /// The `index`-th of them.
  const ActorTag& runnable_tag(std::size_t index) const;
  /// Lets it handle one message.
  void run(std::size_t index);

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

class RankActors {
 public:
  RankActors(ActorSystem& system, RankConfig config);
  /// Ends the actors; every runtime of the rank is gone by then.
  ~RankActors();
  RankActors(const RankActors&) = delete;
  RankActors& operator=(const RankActors&) = delete;

  /// Introduces the ranks of a process to each other, before the first call of any.
  static void connect(const std::vector<RankActors*>& ranks);

  // After a failure, in this order; see [Note: epochs] in comm/fabric.hpp.

  /// Ends the actors, those of every runtime having ended. Calls go on throwing the failure. False
  /// if they do not end in time: then they are left alone.
  bool end();
  /// New actors on the communicators of a new epoch; its first ticket is 1. What was launched and
  /// sent stays counted.
  void renew(const std::array<Communicator*, channel_count>& communicators);
  /// Once all ranks have renewed theirs: introduces this one to them again.
  void reconnect();
  /// From now on calls throw `failure`, whatever came first.
  void fail_for_good(Failure failure);

  const RankConfig& config() const;
  RankState& state();

  /// The ticket that the next collective of this rank takes.
  Ticket next_ticket() const { return next_ticket_; }
  void set_next_ticket(Ticket ticket) { next_ticket_ = ticket; }

  /// A collective of no bucket, with the next ticket; returns when it is done. On failure it
  /// throws, but not before its buffers are free to go.
  /// Of the world, unless `group` names communicators.
  void collective(Channel channel,
                  CollectiveCall call,
                  const EventSet& after,
                  const Group& group = {});
  /// Waits until all tickets up to `ticket` are launched and `done` holds. `what` names the wait in
  /// the error of a deadline and in the trace. With ticket 0 it is no wait for communication:
  /// neither counted nor traced.
  void wait(Ticket ticket, FunctionRef<bool()> done, const char* what, BucketId bucket = no_bucket);

  /// The world has failed (its `report_failure` knows it) on a rank that is elsewhere: stops the
  /// actors of that epoch, now or when it begins here. The first epoch is 1, each `renew` begins
  /// the next. Any thread.
  void peer_failed(std::uint64_t epoch, const Failure& failure);
  /// Tells the supervisor, and through it every rank. Any failure after the first is ignored.
  void fail(Failure failure);
  /// The same; throws the world's first failure, which may be another.
  [[noreturn]] void fail_and_throw(const Failure& failure);
  bool failed() const;
  void throw_if_failed() const;
  void throw_if_failed_for_good() const;
  /// Waits until the comm actor has heard of the end of everything launched, so that the streams
  /// may be stopped. False if the limit passes.
  bool quiesce(Duration limit);
  /// Executor::coordinator, where no comm thread does it: the comm actor looks at its deadline.
  void tick();
  /// Time that the trainer has spent waiting for communication so far.
  Duration waited() const { return waited_; }

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  struct Door;

  ActorSystem& system_;
  std::unique_ptr<Impl> impl_;
  std::unique_ptr<Door> door_;  ///< of failures that come from elsewhere
  std::vector<RankActors*> peers_;
  std::optional<Failure> for_good_;
  Ticket next_ticket_ = 1;
  Duration waited_{};
};

class RuntimeActors {
 public:
  /// `table` and what the setups point to outlive the actors.
  RuntimeActors(RankActors& rank,
                SchedulerSetup setup,
                std::vector<BucketSetup> buckets,
                SlotTable& table);
  /// Ends the actors; `quiesce` was called before.
  ~RuntimeActors();
  /// The same, ahead of time: before those of the rank are renewed. False if they do not end.
  bool end();
  RuntimeActors(const RuntimeActors&) = delete;
  RuntimeActors& operator=(const RuntimeActors&) = delete;

  /// Of the rank's runtimes, counted from 1 in the order of construction.
  std::uint32_t id() const;

  /// Tells the scheduler and waits for its answer, which is valid until the next call. Throws
  /// `Error` if the rank has failed; a refusal is in the answer.
  const Answer& ask(TrainerEvent event);
  /// Waits until every ticket of this runtime is retired. False if the deadline passes.
  bool quiesce(Duration limit);

  BucketState state(BucketId bucket) const;
  std::uint64_t tickets_open() const;
  const ScheduleCounters& counters() const;
  /// Bytes of this runtime's slots that hold parameters, and of gradient slots being filled.
  const HeldBytes& unsharded() const;
  const HeldBytes& gradients() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
