/// One rank's actors without a runtime: a communicator that only notes what it is asked for, manual
/// streams, and CAF's test coordinator, so that a test decides which message is handled when.
#pragma once

#include "troupe/actors/bucket_actor.hpp"
#include "troupe/actors/comm_actor.hpp"
#include "troupe/actors/supervisor_actor.hpp"
#include "troupe/comm/host_stream.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe::test {

class NotingCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Result<void> launch(const CollectiveCall& call, Stream& /*stream*/) override {
    if (call.ticket == refused) {
      return Failure{.code = ErrorCode::device, .text = "planted: refused", .ticket = call.ticket};
    }
    calls.push_back(call);
    return {};
  }
  void abort(const Failure& failure) override { aborted.push_back(failure.text); }

  std::vector<CollectiveCall> calls;
  std::vector<std::string> aborted;
  Ticket refused = 0;
};

class ActorBench {
 public:
  explicit ActorBench(RankTrace* trace = nullptr)
      : system_(configured(config_)),
        unit_(system_),
        stream_(device_.create_host_stream("collectives")),
        state_(rank_config(trace)) {
    routing_.coordinator = true;
    supervisor = spawn_lazily<Supervisor>(system_, unit_, routing_, state_);
    comm = spawn_lazily<Comm>(system_, unit_, routing_, state_, supervisor);
    dynamic_cast<Supervisor&>(*caf::actor_cast<caf::abstract_actor*>(supervisor)).connect(comm, {});
  }
  ~ActorBench() {
    for (const BucketActor& bucket : buckets_) {
      post_exit(bucket, nullptr);
    }
    post_exit(supervisor, nullptr);
    post_exit(comm, nullptr);
    run();
    buckets_.clear();
    supervisor = nullptr;
    comm = nullptr;
  }
  ActorBench(const ActorBench&) = delete;
  ActorBench& operator=(const ActorBench&) = delete;

  /// A bucket of 16 elements per shard on slots 0 and 1.
  BucketActor spawn_bucket(BucketId id) {
    BucketSetup setup;
    setup.id = id;
    setup.label = "bucket " + std::to_string(id);
    setup.numel = 16;
    setup.own = {0, 16};
    setup.main_weights = memory_.data();
    setup.main_gradients = memory_.data();
    buckets_.push_back(spawn_lazily<BucketLife>(system_, unit_, routing_, state_, std::move(setup),
                                                table_, words_, comm, supervisor));
    return buckets_.back();
  }
  template <class Handle, class Message>
  void tell(const Handle& to, Message message) {
    post(to, std::move(message), nullptr);
    run();
  }
  /// Handles all mail, oldest first.
  void run() {
    auto& coordinator = dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
    while (!coordinator.jobs.empty()) {
      coordinator.run_once();
      ++messages;
    }
  }
  /// Lets everything on the stream happen, completions included.
  void finish_stream() {
    while (!stream_.idle() && stream_.step()) {
      ++stream_steps;
    }
    run();
  }
  Launch launch(Ticket ticket, const BucketActor& bucket) {
    Launch launch;
    launch.call = {.op = Collective::barrier, .ticket = ticket, .label = "test"};
    launch.recorded = &event_;
    launch.bucket = bucket;
    return launch;
  }

  RankState& state() { return state_; }
  RuntimeWords& words() { return words_; }
  NotingCommunicator communicator;
  SupervisorActor supervisor;
  CommActor comm;
  std::vector<std::string> logs;
  int messages = 0;      ///< handled so far
  int stream_steps = 0;  ///< operations and notifications of the stream, so far

 private:
  class NoWaiter final : public Waiter {
   public:
    void notify() override {}
    bool wait(FunctionRef<bool()> ready, TimePoint /*deadline*/) override { return ready(); }
  };

  static caf::actor_system_config& configured(caf::actor_system_config& config) {
    config.set("scheduler.policy", caf::atom("testing"));
    return config;
  }
  RankConfig rank_config(RankTrace* trace) {
    RankConfig config;
    config.device = &device_;
    config.queues = {RankConfig::Queue{&communicator, &stream_},
                     RankConfig::Queue{&communicator, &stream_}};
    config.waiter = &waiter_;
    config.clock = &Clock::steady();
    config.timeout = std::chrono::seconds{10};
    config.report_failure = [](Failure failure) { return failure; };
    config.abort = [this](const Failure& failure) { communicator.abort(failure); };
    config.trace = trace;
    config.log = [this](const std::string& text) { logs.push_back(text); };
    return config;
  }

  caf::actor_system_config config_;
  caf::actor_system system_;
  InlineUnit unit_;
  HostDevice device_{StreamWorkers::manual};
  HostStream& stream_;
  NoWaiter waiter_;
  RankState state_;
  Routing routing_;
  std::vector<float> memory_ = std::vector<float>(64);
  SlotTable table_{
      {reinterpret_cast<std::byte*>(memory_.data()), reinterpret_cast<std::byte*>(memory_.data())},
      std::vector<Event>(2),
      {reinterpret_cast<std::byte*>(memory_.data())},
      std::vector<Event>(1)};
  RuntimeWords words_{4};
  Event event_;
  std::vector<BucketActor> buckets_;
};

}  // namespace troupe::test
