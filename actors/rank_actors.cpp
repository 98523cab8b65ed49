#include "troupe/actors/rank_actors.hpp"

#include "troupe/actors/bucket_actor.hpp"
#include "troupe/actors/comm_actor.hpp"
#include "troupe/actors/scheduler_actor.hpp"
#include "troupe/actors/supervisor_actor.hpp"

#include <mutex>
#include <utility>

namespace troupe {

namespace {

/// How long the end of an actor may take. Nothing blocks a handler, so this is generous.
constexpr std::chrono::seconds actor_exit_limit{30};

/// The trainer waits this much longer than the collectives do, so that their error, which names the
/// missing ranks, comes first.
Duration trainer_limit(Duration collective) {
  return collective + std::max<Duration>(collective / 4, std::chrono::seconds{2});
}

caf::actor_system_config& configure(caf::actor_system_config& config) {
  config.set("scheduler.policy", caf::atom("testing"));  // no pool threads, also in production
  return config;
}

}  // namespace

struct ActorSystem::Impl {
  Impl(Executor given, MessageObserver* given_observer)
      : executor(given), observer(given_observer), system(configure(config)) {}
  Executor executor;
  MessageObserver* observer;
  caf::actor_system_config config;
  caf::actor_system system;

  caf::scheduler::test_coordinator& coordinator() {
    return dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  }
};

ActorSystem::ActorSystem(Executor executor, MessageObserver* observer)
    : impl_(std::make_unique<Impl>(executor, observer)) {}
ActorSystem::~ActorSystem() = default;

std::size_t ActorSystem::runnable() const {
  return impl_->coordinator().jobs.size();
}

const ActorTag& ActorSystem::runnable_tag(std::size_t index) const {
  return dynamic_cast<const Tagged&>(*impl_->coordinator().jobs[index]).tag();
}

void ActorSystem::run(std::size_t index) {
  auto& coordinator = impl_->coordinator();
  const auto chosen = coordinator.jobs.begin() + static_cast<std::ptrdiff_t>(index);
  std::rotate(coordinator.jobs.begin(), chosen, chosen + 1);
  coordinator.run_once();
}

struct RankActors::Impl {
  Impl(ActorSystem::Impl& shared, RankConfig config)
      : system(shared.system), unit(system), state(std::move(config)) {
    routing.coordinator = shared.executor == Executor::coordinator;
    routing.observer = shared.observer;
    if (!routing.coordinator) {
      home = std::make_unique<HomeUnit>(system, state.config.comm_poll);
      routing.home = home.get();
    }
    supervisor = spawn_lazily<Supervisor>(system, unit, routing, state);
    comm = spawn_lazily<Comm>(system, unit, routing, state, supervisor);
    if (home) {
      const auto interval = std::clamp<Duration>(
          state.config.timeout / 4, std::chrono::milliseconds{10}, std::chrono::seconds{1});
      home->start(interval, [this] { post(comm, Tick{}, home.get()); });
    }
    connect({});  // from here on the two hold each other, and only their end lets go
  }

  void connect(std::vector<SupervisorActor> peers) {
    dynamic_cast<Supervisor&>(*caf::actor_cast<caf::abstract_actor*>(supervisor))
        .connect(comm, std::move(peers));
  }
  template <class Handle, class Message>
  void tell(const Handle& to, Message message) {
    post(to, std::move(message), &unit);
    unit.drain();
  }

  caf::actor_system& system;
  InlineUnit unit;  // of the trainer's thread
  RankState state;
  Routing routing;
  std::unique_ptr<HomeUnit> home;
  SupervisorActor supervisor;
  CommActor comm;
  std::uint32_t runtimes = 0;
};

/// What a thread of another rank may look at while the trainer's ends the actors or makes new ones.
struct RankActors::Door {
  std::mutex mutex;
  // Guarded by mutex:
  std::uint64_t epoch = 1;
  SupervisorActor supervisor;  ///< of that epoch; null when it has ended
  std::optional<Failure> of_next_epoch;
};

RankActors::RankActors(ActorSystem& system, RankConfig config)
    : system_(system),
      impl_(std::make_unique<Impl>(system.impl(), std::move(config))),
      door_(std::make_unique<Door>()) {
  door_->supervisor = impl_->supervisor;
}

RankActors::~RankActors() {
  if (!end()) {
    if (impl_->state.config.log) {
      impl_->state.config.log("rank " + std::to_string(impl_->state.config.rank) +
                              ": its actors did not end; leaving them");
    }
    // Freeing what they use would be worse.
    static_cast<void>(impl_.release());  // NOLINT(bugprone-unused-return-value)
  }
}

bool RankActors::end() {
  Impl& impl = *impl_;
  if (!impl.supervisor) {
    return true;
  }
  {
    const std::lock_guard lock(door_->mutex);
    door_->supervisor = nullptr;
  }
  post_exit(impl.supervisor, &impl.unit);
  post_exit(impl.comm, &impl.unit);
  impl.unit.drain();
  const auto ended = [&] { return impl.state.alive.load() == 0; };
  if (!impl.state.config.waiter->wait(ended, impl.state.config.clock->now() + actor_exit_limit)) {
    return false;
  }
  if (impl.home) {
    impl.home->join();  // before the handles go: its ticks use them
  }
  impl.supervisor = nullptr;
  impl.comm = nullptr;
  return true;
}

void RankActors::renew(const std::array<Communicator*, channel_count>& communicators) {
  RankConfig config = impl_->state.config;
  for (std::size_t channel = 0; channel < channel_count; ++channel) {
    config.queues[channel].communicator = communicators[channel];
  }
  auto renewed = std::make_unique<Impl>(system_.impl(), std::move(config));
  for (std::size_t op = 0; op < collective_count; ++op) {
    renewed->state.launches[op].store(impl_->state.launches[op].load());
    renewed->state.bytes_sent[op].store(impl_->state.bytes_sent[op].load());
  }
  impl_ = std::move(renewed);
  next_ticket_ = 1;
  std::optional<Failure> failed;
  {
    const std::lock_guard lock(door_->mutex);
    ++door_->epoch;
    door_->supervisor = impl_->supervisor;
    failed = std::exchange(door_->of_next_epoch, std::nullopt);
  }
  if (failed) {
    impl_->tell(impl_->supervisor, PeerFailed{*std::move(failed)});
  }
}

void RankActors::peer_failed(std::uint64_t epoch, const Failure& failure) {
  SupervisorActor supervisor;
  {
    const std::lock_guard lock(door_->mutex);
    if (epoch > door_->epoch) {
      door_->of_next_epoch = failure;
    }
    if (epoch != door_->epoch || !door_->supervisor) {
      return;
    }
    supervisor = door_->supervisor;
  }
  InlineUnit unit(system_.impl().system);  // of this thread
  post(supervisor, PeerFailed{failure}, &unit);
  unit.drain();
}

void RankActors::reconnect() {
  Connect message;
  for (const RankActors* peer : peers_) {
    message.peers.push_back(peer->impl_->supervisor);
  }
  impl_->tell(impl_->supervisor, std::move(message));
}

void RankActors::fail_for_good(Failure failure) {
  fail(failure);
  for_good_ = std::move(failure);
}

void RankActors::connect(const std::vector<RankActors*>& ranks) {
  for (RankActors* rank : ranks) {
    std::vector<SupervisorActor> peers;
    rank->peers_.clear();
    for (RankActors* peer : ranks) {
      if (peer != rank) {
        peers.push_back(peer->impl_->supervisor);
        rank->peers_.push_back(peer);
      }
    }
    rank->impl_->connect(std::move(peers));
  }
}

const RankConfig& RankActors::config() const {
  return impl_->state.config;
}
RankState& RankActors::state() {
  return impl_->state;
}

void RankActors::collective(Channel channel,
                            CollectiveCall call,
                            const EventSet& after,
                            const Group& group) {
  RankState& state = impl_->state;
  const auto own = std::make_shared<OwnCollective>();
  call.ticket = next_ticket_++;
  Launch launch;
  launch.channel = channel;
  launch.axis = group.axis;
  launch.group = channel == Channel::gather ? group.gathers : group.reduces;
  launch.call = call;
  launch.after = after;
  launch.own = own;
  impl_->tell(impl_->comm, std::move(launch));
  try {
    wait(call.ticket, [&] { return own->recorded.done(); }, to_string(call.op));
  } catch (...) {
    if (!state.config.waiter->wait([&] { return own->over.load(); },
                                   state.config.clock->now() + actor_exit_limit) &&
        state.config.log) {
      state.config.log("rank " + std::to_string(state.config.rank) + ": " + describe(call) +
                       " did not end after the failure");
    }
    throw;
  }
}

void RankActors::wait(Ticket ticket, FunctionRef<bool()> done, const char* what, BucketId bucket) {
  RankState& state = impl_->state;
  const auto over = [&] {
    return (state.launched.load() >= ticket && done()) || state.failed.load();
  };
  if (!over()) {
    const TimePoint began = state.config.clock->now();
    const bool in_time =
        state.config.waiter->wait(over, began + trainer_limit(state.config.timeout));
    if (ticket != 0) {
      const TimePoint ended = state.config.clock->now();
      waited_ += ended - began;
      if (state.config.trace != nullptr) {
        state.config.trace->add({RankTrace::waits_row, "wait for", what, began, ended, ticket,
                                 bucket, !in_time || state.failed.load()});
      }
    }
    if (!in_time) {
      std::string text =
          "rank " + std::to_string(state.config.rank) + ": waited too long for " + what;
      if (bucket != no_bucket) {
        text += " of bucket " + std::to_string(bucket);
      }
      text += " (ticket " + std::to_string(ticket) + ", launched up to " +
              std::to_string(state.launched.load()) + ")";
      fail_and_throw({.code = ErrorCode::timeout,
                      .text = std::move(text),
                      .rank = state.config.rank,
                      .ticket = ticket,
                      .bucket = bucket});
    }
  }
  throw_if_failed();
}

void RankActors::fail(Failure failure) {
  if (!impl_->supervisor) {
    return;  // ended after a failure, which stands
  }
  impl_->tell(impl_->supervisor, Failed{std::move(failure)});
  RankState& state = impl_->state;
  // The supervisor may be at work on another thread; it never blocks.
  static_cast<void>(state.config.waiter->wait([&] { return state.failed.load(); },
                                              state.config.clock->now() + actor_exit_limit));
}

bool RankActors::quiesce(Duration limit) {
  RankState& state = impl_->state;
  // Tickets are launched without gaps from 1, so the last one is their number.
  return state.config.waiter->wait([&] { return state.completed.load() == state.launched.load(); },
                                   state.config.clock->now() + limit);
}

void RankActors::fail_and_throw(const Failure& failure) {
  fail(failure);
  throw_if_failed();
  throw Error(failure);  // not even the supervisor gets to run: in no case go on
}

void RankActors::tick() {
  if (!impl_->comm) {
    return;  // between two epochs
  }
  post(impl_->comm, Tick{}, nullptr);
}

bool RankActors::failed() const {
  return impl_->state.failed.load();
}

void RankActors::throw_if_failed() const {
  if (impl_->state.failed.load()) {
    throw Error(for_good_ ? *for_good_ : impl_->state.failure);
  }
}

void RankActors::throw_if_failed_for_good() const {
  if (for_good_) {
    throw Error(*for_good_);
  }
}

struct RuntimeActors::Impl {
  Impl(RankActors& owner, SlotTable& slot_table, std::size_t bucket_count)
      : rank(owner), table(slot_table), words(bucket_count) {}

  RankActors& rank;
  SlotTable& table;
  RuntimeWords words;
  SchedulerActor scheduler;
  std::vector<BucketActor> buckets;
  std::uint32_t id = 0;
  std::uint64_t sequence = 0;
};

RuntimeActors::RuntimeActors(RankActors& rank,
                             SchedulerSetup setup,
                             std::vector<BucketSetup> buckets,
                             SlotTable& table)
    : impl_(std::make_unique<Impl>(rank, table, buckets.size())) {
  RankActors::Impl& shared = rank.impl();
  impl_->id = ++shared.runtimes;
  setup.runtime = impl_->id;
  for (BucketSetup& bucket : buckets) {
    bucket.runtime = impl_->id;
    impl_->buckets.push_back(spawn_lazily<BucketLife>(
        shared.system, shared.unit, shared.routing, shared.state, std::move(bucket), table,
        impl_->words, shared.comm, shared.supervisor));
  }
  impl_->scheduler =
      spawn_lazily<Scheduler>(shared.system, shared.unit, shared.routing, shared.state,
                              std::move(setup), impl_->words, impl_->buckets, &shared.unit);
  shared.tell(shared.supervisor, RegisterRuntime{impl_->id, impl_->scheduler, impl_->buckets});
}

RuntimeActors::~RuntimeActors() {
  if (!end()) {
    const RankConfig& config = impl_->rank.config();
    if (config.log) {
      config.log("rank " + std::to_string(config.rank) +
                 ": a runtime's actors did not end; leaving them");
    }
    static_cast<void>(impl_.release());  // NOLINT(bugprone-unused-return-value)
  }
}

bool RuntimeActors::end() {
  if (!impl_->scheduler) {
    return true;
  }
  RankActors::Impl& shared = impl_->rank.impl();
  shared.tell(shared.supervisor, UnregisterRuntime{impl_->id});
  post_exit(impl_->scheduler, &shared.unit);
  for (const BucketActor& bucket : impl_->buckets) {
    post_exit(bucket, &shared.unit);
  }
  shared.unit.drain();
  const auto ended = [&] { return impl_->words.alive.load() == 0; };
  const RankConfig& config = shared.state.config;
  if (!config.waiter->wait(ended, config.clock->now() + actor_exit_limit)) {
    return false;
  }
  impl_->scheduler = nullptr;
  impl_->buckets.clear();
  return true;
}

std::uint32_t RuntimeActors::id() const {
  return impl_->id;
}

const Answer& RuntimeActors::ask(TrainerEvent event) {
  RankState& state = impl_->rank.state();
  impl_->rank.throw_if_failed();
  event.sequence = ++impl_->sequence;
  event.next_ticket = impl_->rank.next_ticket();
  const TrainerEventKind kind = event.kind;
  impl_->rank.impl().tell(impl_->scheduler, std::move(event));
  const auto handled = [&] { return impl_->words.handled.load() == impl_->sequence; };
  if (!handled()) {  // it happens to run on another thread
    impl_->rank.wait(0, handled, to_string(kind));
  }
  if (state.failed.load() && kind != TrainerEventKind::abandon_use) {
    impl_->rank.throw_if_failed();  // a stopped scheduler answers, too
  }
  impl_->rank.set_next_ticket(impl_->words.answer.next_ticket);
  return impl_->words.answer;
}

bool RuntimeActors::quiesce(Duration limit) {
  const RankConfig& config = impl_->rank.config();
  const auto quiet = [&] {
    return impl_->words.handled.load() == impl_->sequence &&
           impl_->words.answered.load() == impl_->words.requested.load();
  };
  return config.waiter->wait(quiet, config.clock->now() + limit);
}

BucketState RuntimeActors::state(BucketId bucket) const {
  return impl_->words.states[bucket].load();
}

std::uint64_t RuntimeActors::tickets_open() const {
  return impl_->words.requested.load() - impl_->words.answered.load();
}

const ScheduleCounters& RuntimeActors::counters() const {
  return impl_->words.counters;
}

const HeldBytes& RuntimeActors::unsharded() const {
  return impl_->words.unsharded;
}

const HeldBytes& RuntimeActors::gradients() const {
  return impl_->words.gradients;
}

}  // namespace troupe
