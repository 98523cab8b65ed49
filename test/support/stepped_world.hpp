/// Several ranks on one thread: trainers are fibers, streams are stepped by hand, the actors run on
/// CAF's test coordinator, time stands still unless nothing else can happen. A seed decides who
/// goes on, so that one run is one interleaving, and the same seed gives the same run.
#pragma once

#include "fiber.hpp"
#include "random.hpp"
#include "troupe/comm/host_stream.hpp"
#include "troupe/comm/local_communicator.hpp"
#include "troupe/runtime/rank_context.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::test {

class SteppedWorld {
 public:
  SteppedWorld(int ranks,
               std::uint64_t seed,
               Duration timeout = std::chrono::seconds{10},
               Trace* trace = nullptr)
      : random_(seed), actors_(Executor::coordinator), local_(ranks, timeout, clock_) {
    std::vector<RankActors*> peers;
    for (int rank = 0; rank < ranks; ++rank) {
      RankEnvironment environment;
      environment.rank = rank;
      environment.actors = &actors_;
      environment.fabric = &local_;
      auto device = std::make_unique<HostDevice>(StreamWorkers::manual, clock_);
      devices_.push_back(device.get());
      environment.device = std::move(device);
      environment.waiter = std::make_unique<FiberWaiter>(*this);
      environment.clock = &clock_;
      environment.timeout = timeout;
      environment.trace = trace;
      environment.log = [this](const std::string& text) { logs.push_back(text); };
      environment.on_launch = [this](int of, const LaunchRecord& record) {
        launches[static_cast<std::size_t>(of)].push_back(record);
      };
      launches.emplace_back();
      contexts_.push_back(std::make_unique<RankContext>(std::move(environment)));
      peers.push_back(&contexts_.back()->actors());
    }
    RankActors::connect(peers);
  }
  ~SteppedWorld() {
    for (const auto& context : contexts_) {
      context->actors().quiesce(std::chrono::seconds{30});
    }
    while (!contexts_.empty()) {
      // Out of the list first: what ends it steps the others.
      const std::unique_ptr<RankContext> last = std::move(contexts_.back());
      contexts_.pop_back();
      devices_.pop_back();
    }
  }
  SteppedWorld(const SteppedWorld&) = delete;
  SteppedWorld& operator=(const SteppedWorld&) = delete;

  /// Runs `body` on every rank until all have ended. `errors[rank]` holds what left the body.
  void run(const std::function<void(World&)>& body) {
    errors.assign(contexts_.size(), "");
    for (std::size_t rank = 0; rank < contexts_.size(); ++rank) {
      start_fiber(rank, body);
    }
    drive([this] {
      return std::ranges::all_of(trainers_,
                                 [](const Trainer& trainer) { return trainer.fiber->ended(); });
    });
    trainers_.clear();
  }

  /// Lets time pass: what the caller does takes that long.
  void advance(Duration by) { clock_.advance(by); }
  TimePoint now() const { return clock_.now(); }
  RankContext& context(int rank) { return *contexts_[static_cast<std::size_t>(rank)]; }
  std::uint64_t choices() const { return choices_; }
  /// Of all choices made: equal seeds have equal hashes.
  std::uint64_t hash() const { return hash_; }

  std::vector<std::vector<LaunchRecord>> launches;  ///< per rank
  std::vector<std::string> errors;                  ///< per rank
  std::vector<std::string> logs;

 private:
  class ManualClock final : public Clock {
   public:
    TimePoint now() const override { return now_; }
    void advance(Duration by) { now_ += by; }

   private:
    TimePoint now_{};
  };

  struct Trainer {
    std::unique_ptr<Fiber> fiber;
    std::function<bool()> waiting;  ///< empty: may go on
  };

  class FiberWaiter final : public Waiter {
   public:
    explicit FiberWaiter(SteppedWorld& world) : world_(world) {}
    void notify() override {}  // predicates are looked at again at each choice
    bool wait(FunctionRef<bool()> ready, TimePoint deadline) override {
      const auto over = [&] { return ready() || world_.clock_.now() >= deadline; };
      if (Trainer* trainer = world_.current_; trainer != nullptr) {
        if (!over()) {
          trainer->waiting = over;
          Fiber::pause();
          trainer->waiting = nullptr;
        }
      } else {
        world_.drive(over);
      }
      return ready();
    }

   private:
    SteppedWorld& world_;
  };

  void start_fiber(std::size_t rank, const std::function<void(World&)>& body) {
    trainers_.push_back({std::make_unique<Fiber>([this, rank, &body] {
                           contexts_[rank]->run([this, rank, &body](World& world) {
                             try {
                               body(world);
                             } catch (const std::exception& exception) {
                               errors[rank] = exception.what();
                               throw;
                             }
                           });
                         }),
                         nullptr});
  }

  void drive(const std::function<bool()>& until) {
    std::size_t idle = 0;  // choices in a row that changed nothing
    while (!until()) {
      std::vector<Trainer*> fibers;
      for (Trainer& trainer : trainers_) {
        if (!trainer.fiber->ended() && (!trainer.waiting || trainer.waiting())) {
          fibers.push_back(&trainer);
        }
      }
      std::vector<HostStream*> streams;
      for (HostDevice* device : devices_) {
        for (HostStream* stream : device->streams()) {
          if (!stream->idle()) {
            streams.push_back(stream);
          }
        }
      }
      const std::size_t total = fibers.size() + streams.size() + actors_.runnable();
      if (total == 0 || idle > 100 * (total + 1)) {
        clock_.advance(std::chrono::seconds{1});  // only a deadline can help
        idle = 0;
        if (++advances_ > 1000) {
          throw std::runtime_error("stepped world: nothing goes on, not even deadlines");
        }
        if (total == 0) {
          continue;
        }
      }
      std::size_t choice = static_cast<std::size_t>(random_.below(total));
      ++choices_;
      hash_ = (hash_ ^ choice) * 1099511628211ULL;
      if (choice < fibers.size()) {
        current_ = fibers[choice];
        current_->fiber->resume();
        current_ = nullptr;
        idle = 0;
      } else if ((choice -= fibers.size()) < streams.size()) {
        idle = streams[choice]->step() ? 0 : idle + 1;
      } else {
        actors_.run(choice - streams.size());
        idle = 0;
      }
    }
  }

  Random random_;
  ManualClock clock_;
  ActorSystem actors_;
  LocalWorld local_;
  std::vector<std::unique_ptr<RankContext>> contexts_;
  std::vector<HostDevice*> devices_;  // of `contexts_`
  std::vector<Trainer> trainers_;
  Trainer* current_ = nullptr;
  std::uint64_t choices_ = 0;
  std::uint64_t hash_ = 0;
  int advances_ = 0;
};

}  // namespace troupe::test
