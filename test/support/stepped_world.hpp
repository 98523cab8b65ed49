/// Several ranks on one thread: trainers are fibers, streams are stepped by hand, the actors run on
/// CAF's test coordinator, time stands still unless nothing else can happen. A seed decides who
/// goes on, so that one run is one interleaving, and the same seed gives the same run.
#pragma once

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
#include <ucontext.h>
#include <vector>

namespace troupe::test {

class SteppedWorld {
 public:
  SteppedWorld(int ranks, std::uint64_t seed, Duration timeout = std::chrono::seconds{10})
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
      return std::all_of(fibers_.begin(), fibers_.end(),
                         [](const auto& fiber) { return fiber->ended; });
    });
    fibers_.clear();
  }

  RankContext& context(int rank) { return *contexts_[static_cast<std::size_t>(rank)]; }
  std::size_t runnable_actors() const { return actors_.runnable(); }
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

  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack;
    std::function<void()> body;
    std::function<bool()> waiting;  ///< empty: may go on
    bool ended = false;
  };

  class FiberWaiter final : public Waiter {
   public:
    explicit FiberWaiter(SteppedWorld& world) : world_(world) {}
    void notify() override {}  // predicates are looked at again at each choice
    bool wait(FunctionRef<bool()> ready, TimePoint deadline) override {
      const auto over = [&] { return ready() || world_.clock_.now() >= deadline; };
      if (Fiber* fiber = world_.current_; fiber != nullptr) {
        if (!over()) {
          fiber->waiting = over;
          swapcontext(&fiber->context, &world_.main_);
          fiber->waiting = nullptr;
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
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *fibers_.back();
    fiber.stack.resize(std::size_t{512} << 10);
    fiber.body = [this, rank, &body] {
      try {
        World world(*contexts_[rank]);
        body(world);
      } catch (const std::exception& exception) {
        errors[rank] = exception.what();
      }
      contexts_[rank]->drop_remains();
    };
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &main_;
    // makecontext passes ints only: the world is handed over in two halves.
    const auto address = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&SteppedWorld::enter), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address & 0xffffffffU));
  }

  static void enter(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<SteppedWorld*>((static_cast<std::uintptr_t>(high) << 32) | low);
    Fiber* fiber = self->current_;
    fiber->body();
    fiber->ended = true;
  }

  void drive(const std::function<bool()>& until) {
    std::size_t idle = 0;  // choices in a row that changed nothing
    while (!until()) {
      std::vector<Fiber*> fibers;
      for (const auto& fiber : fibers_) {
        if (!fiber->ended && (!fiber->waiting || fiber->waiting())) {
          fibers.push_back(fiber.get());
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
        swapcontext(&main_, &current_->context);
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
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* current_ = nullptr;
  ucontext_t main_{};
  std::uint64_t choices_ = 0;
  std::uint64_t hash_ = 0;
  int advances_ = 0;
};

}  // namespace troupe::test
