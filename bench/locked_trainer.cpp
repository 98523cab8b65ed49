// The baseline: one mutex and one condition variable for everything; see pass_trainer.hpp.
#include "pass_trainer.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"
#include "troupe/comm/local_communicator.hpp"
#include "troupe/core/bucket_layout.hpp"
#include "troupe/core/bucket_state.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::bench {

namespace {

/// One for all ranks of the process.
struct GlobalLock {
  std::mutex mutex;
  std::condition_variable changed;
};

struct Plan {
  std::vector<BucketLayout> layouts;
  MemoryPlan memory;
  SchedulePlan schedule;
};

void check(const Result<void>& result) {
  if (!result) {
    throw Error(result.failure());
  }
}

Plan plan_of(const PassSetup& setup) {
  constexpr std::int64_t alignment_numel = 16;  // as the runtime's default
  const Model model = equal_units(setup);
  const BucketPlan buckets = plan_buckets(model);
  Plan plan;
  for (const Bucket& bucket : buckets.buckets) {
    plan.layouts.emplace_back(std::vector<std::int64_t>{bucket.numel}, setup.ranks,
                              alignment_numel);
  }
  plan.memory =
      value_or_throw(plan_memory(model, buckets, plan.layouts,
                                 {.slots = setup.slots, .prefetch_depth = setup.prefetch_depth}));
  plan.schedule = make_schedule_plan(model, buckets, plan.memory);
  return plan;
}

class LockedTrainer final : public PassTrainer {
 public:
  LockedTrainer(GlobalLock& shared, LocalWorld& local, int rank, Plan plan)
      : shared_(shared),
        plan_(std::move(plan)),
        communicator_(local.communicator(rank, all_ranks(local), 0)),
        stream_(device_.create_host_stream("gather")),
        slots_(value_or_throw(
            device_.allocate(plan_.memory.parameters.bytes, Purpose::parameter_slots))),
        schedule_(plan_.schedule),
        states_(plan_.layouts.size(), BucketState::sharded) {
    for (const BucketLayout& layout : plan_.layouts) {
      const auto bytes = layout.shard_numel() * static_cast<std::int64_t>(sizeof(float));
      weights_.push_back(value_or_throw(device_.allocate(bytes, Purpose::main_weights)));
    }
    for (BucketId bucket = 0; bucket < states_.size(); ++bucket) {
      check(schedule_.updated(bucket));  // as after initialisation
      carry_out();
    }
    comm_ = std::thread([this] { launch_all(); });
  }

  ~LockedTrainer() override {
    {
      const std::lock_guard lock(shared_.mutex);
      stopping_ = true;
    }
    shared_.changed.notify_all();
    comm_.join();
    stream_.stop();  // before what its callbacks use
  }
  LockedTrainer(const LockedTrainer&) = delete;
  LockedTrainer& operator=(const LockedTrainer&) = delete;

  void begin_pass() override {
    const std::lock_guard lock(shared_.mutex);
    check(schedule_.begin_eval());
  }

  void begin(UnitId unit) override {
    std::unique_lock lock(shared_.mutex);
    check(schedule_.begin(unit, false));
    unit_ = unit;
    const bool launches = carry_out();
    Ticket needed = 0;
    for (const UsedBucket& used : schedule_.used()) {
      needed = std::max(needed, used.gather);
    }
    if (completed_ < needed) {
      shared_.changed.notify_all();
      shared_.changed.wait(lock, [&] { return completed_ >= needed; });
    } else if (launches) {
      lock.unlock();
      shared_.changed.notify_all();
    }
  }

  void end() override {
    std::unique_lock lock(shared_.mutex);
    check(schedule_.end(unit_, false));
    if (carry_out()) {
      lock.unlock();
      shared_.changed.notify_all();
    }
  }

  void end_pass() override {
    const std::lock_guard lock(shared_.mutex);
    check(schedule_.end_eval());
    carry_out();  // nothing to launch
  }

  ScheduleCounters counters() const override {
    const std::lock_guard lock(shared_.mutex);
    return schedule_.counters();
  }

  /// Everything launched has completed.
  void wait_until_idle() {
    std::unique_lock lock(shared_.mutex);
    shared_.changed.wait(lock, [&] { return completed_ + 1 == schedule_.next_ticket(); });
  }

 private:
  static std::vector<int> all_ranks(const LocalWorld& local) {
    std::vector<int> ranks(static_cast<std::size_t>(local.world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  void advance(BucketId bucket, BucketEvent event) {
    const std::optional<BucketState> next = next_state(states_[bucket], event);
    if (!next) {
      throw Error({.code = ErrorCode::internal, .text = "no such row", .bucket = bucket});
    }
    states_[bucket] = *next;
  }

  /// With the lock held: what the schedule has decided. True if there is something to launch.
  bool carry_out() {
    bool launches = false;
    for (const Decision& decision : schedule_.decisions()) {
      const BucketId bucket = decision.bucket;
      switch (decision.command) {
        case Command::gather:
          advance(bucket, BucketEvent::gather);
          queue_.push_back(gather_of(decision));
          launches = true;
          break;
        case Command::use:
          advance(bucket, BucketEvent::use);
          break;
        case Command::release:
          advance(bucket, schedule_.open_uses(bucket) > 0 ? BucketEvent::release
                                                          : BucketEvent::release_last);
          break;
        case Command::evict:
          advance(bucket, BucketEvent::evict);
          break;
        case Command::step_end:
          advance(bucket, BucketEvent::step_end);
          break;
        case Command::contribute:
        case Command::reduce:
        case Command::regather:
        case Command::sum_replicas:
          break;  // forwards only, one group
      }
    }
    return launches;
  }

  CollectiveCall gather_of(const Decision& decision) {
    return {.op = Collective::all_gather,
            .ticket = decision.ticket,
            .bucket = decision.bucket,
            .label = "bucket",
            .input = weights_[decision.bucket].data(),
            .output = slots_.bytes_at(plan_.memory.parameters.slot_offset[decision.slot]),
            .numel = plan_.layouts[decision.bucket].shard_numel()};
  }

  /// The rank's comm thread.
  void launch_all() {
    std::unique_lock lock(shared_.mutex);
    for (;;) {
      shared_.changed.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      const CollectiveCall call = queue_.front();
      queue_.pop_front();
      lock.unlock();
      check(communicator_->launch(call, stream_));
      stream_.notify([this, ticket = call.ticket](const StreamReport&) {
        {
          const std::lock_guard completion(shared_.mutex);
          completed_ = ticket;
        }
        shared_.changed.notify_all();
      });
      lock.lock();
    }
  }

  GlobalLock& shared_;
  const Plan plan_;
  HostDevice device_;
  const std::unique_ptr<Communicator> communicator_;
  HostStream& stream_;
  std::vector<Buffer> weights_;  ///< per bucket
  Buffer slots_;

  // Guarded by the global lock.
  Schedule schedule_;
  std::vector<BucketState> states_;
  std::deque<CollectiveCall> queue_;
  Ticket completed_ = 0;  ///< one stream: they complete in order
  bool stopping_ = false;

  UnitId unit_ = 0;  ///< the trainer's
  std::thread comm_;
};

}  // namespace

void with_one_lock(const PassSetup& setup, const PassBody& body) {
  GlobalLock shared;
  LocalWorld local(setup.ranks, std::chrono::minutes{1});
  const Plan plan = plan_of(setup);
  std::vector<std::unique_ptr<LockedTrainer>> trainers;
  trainers.reserve(static_cast<std::size_t>(setup.ranks));
  for (int rank = 0; rank < setup.ranks; ++rank) {
    trainers.push_back(std::make_unique<LockedTrainer>(shared, local, rank, plan));
  }
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(setup.ranks));
  for (int rank = 0; rank < setup.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      LockedTrainer& trainer = *trainers[static_cast<std::size_t>(rank)];
      body(trainer, rank);
      trainer.wait_until_idle();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace troupe::bench
