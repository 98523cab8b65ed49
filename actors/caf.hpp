/// Everything that is particular to CAF 0.17: who runs an actor, how it is spawned, posted to and
/// stopped. The other files of this room see handles and behaviours only. (CAF 1.x would replace
/// the execution units by its scheduler class, `actor_config` stays, messages get type-id blocks.)
///
/// Actors run on the thread that sends. Each such thread has an `InlineUnit`, a queue of actors
/// with mail that the thread works off before it goes on. The comm actor is at home elsewhere: its
/// `HomeUnit` hands it to one thread per device. CAF's own scheduler is the `testing` one and has
/// no threads; in tests all actors are run through it, one message at a time.
#pragma once

#include "troupe/actors/messages.hpp"
#include "troupe/comm/waiting.hpp"

#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace troupe {
struct Connect;
struct RegisterRuntime;
struct UnregisterRuntime;

using BucketActor = caf::typed_actor<caf::reacts_to<Gather>,
                                     caf::reacts_to<BeginUse>,
                                     caf::reacts_to<EndUse>,
                                     caf::reacts_to<Evict>,
                                     caf::reacts_to<Contribute>,
                                     caf::reacts_to<Reduce>,
                                     caf::reacts_to<SumReplicas>,
                                     caf::reacts_to<StepEnd>,
                                     caf::reacts_to<Abandon>,
                                     caf::reacts_to<Completed>,
                                     caf::reacts_to<Stop>>;
using Launch = BasicLaunch<BucketActor>;
using CommActor = caf::typed_actor<caf::reacts_to<Launch>,
                                   caf::reacts_to<StreamDone>,
                                   caf::reacts_to<Tick>,
                                   caf::reacts_to<Stop>>;
using SchedulerActor = caf::typed_actor<caf::reacts_to<TrainerEvent>, caf::reacts_to<Stop>>;
using SupervisorActor = caf::typed_actor<caf::reacts_to<Failed>,
                                         caf::reacts_to<PeerFailed>,
                                         caf::reacts_to<Connect>,
                                         caf::reacts_to<RegisterRuntime>,
                                         caf::reacts_to<UnregisterRuntime>>;

/// To the supervisor of a new epoch: those of the other ranks.
struct Connect {
  std::vector<SupervisorActor> peers;
};
/// To the supervisor: whom to stop besides the comm actor.
struct RegisterRuntime {
  std::uint32_t runtime = 0;
  SchedulerActor scheduler;
  std::vector<BucketActor> buckets;
};
struct UnregisterRuntime {
  std::uint32_t runtime = 0;
};

}  // namespace troupe

// Messages never leave the process.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::TrainerEvent)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Gather)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BeginUse)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::EndUse)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Evict)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Contribute)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Reduce)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SumReplicas)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::StepEnd)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Abandon)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Launch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::StreamDone)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Completed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::PeerFailed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Connect)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::RegisterRuntime)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::UnregisterRuntime)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Stop)

namespace troupe {

/// Runs what its thread sends to, first in, first out. Used by one thread at a time.
class InlineUnit final : public caf::execution_unit {
 public:
  explicit InlineUnit(caf::actor_system& system) : caf::execution_unit(&system) {
    queue_.reserve(256);
  }

  void exec_later(caf::resumable* job) override { queue_.push_back(job); }

  void drain() {
    while (head_ < queue_.size()) {
      caf::resumable* job = queue_[head_++];
      // A limit on messages per turn, so that an actor that always has mail cannot starve others.
      if (job->resume(this, 64) == caf::resumable::resume_later) {
        queue_.push_back(job);
      } else {
        caf::intrusive_ptr_release(job);
      }
    }
    queue_.clear();
    head_ = 0;
  }

 private:
  std::vector<caf::resumable*> queue_;  // a deque would allocate now and then
  std::size_t head_ = 0;
};

/// Stands in as unit for the one actor that is at home on a thread of its own.
class HomeUnit final : public caf::execution_unit {
 public:
  HomeUnit(caf::actor_system& system, Duration poll)
      : caf::execution_unit(&system), unit_(system), waiter_(poll) {}
  ~HomeUnit() override { join(); }
  HomeUnit(const HomeUnit&) = delete;
  HomeUnit& operator=(const HomeUnit&) = delete;

  void exec_later(caf::resumable* job) override {
    job_.store(job, std::memory_order_seq_cst);  // one actor has at most one job at a time
    waiter_.notify();
  }

  /// `tick` is called on the thread when nothing has come in for `interval`.
  void start(Duration interval, std::function<void()> tick) {
    thread_ = std::thread([this, interval, tick = std::move(tick)] {
      const Clock& clock = Clock::steady();
      while (true) {
        const bool woken = waiter_.wait([&] { return job_.load() != nullptr || stop_.load(); },
                                        clock.now() + interval);
        if (caf::resumable* job = job_.exchange(nullptr); job != nullptr) {
          unit_.exec_later(job);
          unit_.drain();
        } else if (stop_.load()) {
          return;
        } else if (!woken) {
          tick();
          unit_.drain();
        }
      }
    });
  }
  void join() {
    stop_.store(true);
    waiter_.notify();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  InlineUnit unit_;
  FutexWaiter waiter_;
  alignas(64) std::atomic<caf::resumable*> job_{nullptr};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// Sees every message as it is sent, where CAF's test coordinator runs the actors.
class MessageObserver {
 public:
  MessageObserver() = default;
  MessageObserver(const MessageObserver&) = delete;
  MessageObserver& operator=(const MessageObserver&) = delete;
  virtual ~MessageObserver() = default;
  virtual void sent(const ActorTag& to, const caf::type_erased_tuple& message) = 0;
};

/// Who runs the actors of a rank.
struct Routing {
  bool coordinator = false;             ///< tests: CAF's test coordinator runs everything
  MessageObserver* observer = nullptr;  ///< only with the coordinator
  caf::execution_unit* home = nullptr;  ///< of the comm actor
};

/// What observers and the coordinator's driver know an actor by.
class Tagged {
 public:
  explicit Tagged(const ActorTag& tag) : tag_(tag) {}
  Tagged(const Tagged&) = delete;
  Tagged& operator=(const Tagged&) = delete;
  virtual ~Tagged() = default;
  const ActorTag& tag() const { return tag_; }

 private:
  const ActorTag tag_;
};

/// Base of our actors: decides where each message makes the actor run, counts lives.
template <class Handle>
class Routed : public Handle::base, public Tagged {
 public:
  using Super = typename Handle::base;
  Routed(caf::actor_config& config,
         const Routing& routing,
         const ActorTag& tag,
         caf::execution_unit* home,
         std::atomic<int>& alive,
         Wakeable& waiter)
      : Super(config),
        Tagged(tag),
        coordinator_(routing.coordinator),
        observer_(routing.observer),
        home_(home),
        alive_(alive),
        waiter_(waiter) {
    alive_.fetch_add(1);
  }

  using Super::enqueue;
  void enqueue(caf::mailbox_element_ptr message, caf::execution_unit* from) override {
    if (observer_ != nullptr) {
      observer_->sent(tag(), message->content());
    }
    Super::enqueue(std::move(message), coordinator_ ? nullptr : home_ != nullptr ? home_ : from);
  }

  void on_exit() override {
    alive_.fetch_sub(1);
    waiter_.notify();
  }

 private:
  bool coordinator_;
  MessageObserver* observer_;
  caf::execution_unit* home_;
  std::atomic<int>& alive_;
  Wakeable& waiter_;
};

/// Spawns without running: the first message does. (An eager first run would go to CAF's
/// scheduler.)
template <class Actor, class... Args>
auto spawn_lazily(caf::actor_system& system, caf::execution_unit& unit, Args&&... args) {
  caf::actor_config config{&unit};
  return system.spawn_class<Actor, caf::lazy_init>(config, std::forward<Args>(args)...);
}

/// Sends from outside of any actor. `unit` is the calling thread's; drain it afterwards.
template <class Handle, class Message>
void post(const Handle& to, Message message, caf::execution_unit* unit) {
  caf::actor_cast<caf::abstract_actor*>(to)->enqueue(
      caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::move(message)), unit);
}

/// Asks an actor to end, behind the messages that it already has.
template <class Handle>
void post_exit(const Handle& to, caf::execution_unit* unit) {
  post(to, caf::exit_msg{caf::actor_addr{}, caf::exit_reason::user_shutdown}, unit);
}

}  // namespace troupe
