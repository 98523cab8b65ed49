#include "simulation_parts.hpp"

#include <algorithm>
#include <utility>

namespace troupe::test {

namespace {

constexpr std::size_t history_size = 100;

}  // namespace

Simulation::Simulation(SimulationOptions options, Chooser& chooser, Violated violated)
    : options_(std::move(options)),
      chooser_(chooser),
      violated_(std::move(violated)),
      accesses_([this](const std::string& text) {
        this->violated("5: a buffer in use is not written or reused", text);
      }),
      fabric_(options_.ranks, timeline_, accesses_, options_.network),
      actors_(Executor::coordinator, this),
      frozen_(static_cast<std::size_t>(options_.ranks)),
      history_(history_size) {
  std::vector<RankActors*> peers;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    SimulatedSurroundings surroundings{.timeline = &timeline_,
                                       .accesses = &accesses_,
                                       .rank = rank,
                                       .kernel_time = options_.kernel_time,
                                       .fault = nullptr};
    if (options_.device_fault) {
      surroundings.fault = [this, rank](const std::string& stream) {
        return options_.device_fault(rank, stream);
      };
    }
    auto device = std::make_unique<SimulatedDevice>(std::move(surroundings));
    devices_.push_back(device.get());
    RankEnvironment environment;
    environment.rank = rank;
    environment.actors = &actors_;
    environment.fabric = &fabric_;
    environment.device = std::move(device);
    environment.waiter = waiters_.emplace_back(std::make_shared<RankWaiter>(*this));
    environment.clock = &timeline_;
    environment.timeout = options_.network.timeout;
    environment.trace = options_.trace;
    environment.log = [this](const std::string& text) { logs_.push_back(text); };
    environment.on_launch = [this](int of, const LaunchRecord& record) {
      hash_ = mix(hash_, record.ticket << 8 | static_cast<std::uint64_t>(of));
      if (watcher_ != nullptr) {
        watcher_->launched(of, record);
      }
    };
    contexts_.push_back(std::make_unique<RankContext>(std::move(environment)));
    peers.push_back(&contexts_.back()->actors());
  }
  RankActors::connect(peers);
  if (options_.pace == Pace::instant) {
    timeline_.observe([this](const void* object, bool alone) {
      if (exploring_) {
        touched(stable_id(object), alone);
      }
    });
    accesses_.observe([this](int rank, const Access& access) { touched_memory(rank, access); });
  }
}

Simulation::~Simulation() {
  thaw();
  if (const auto failure = fabric_.first_failure().get()) {
    for (const auto& context : contexts_) {
      context->actors().fail(*failure);
    }
  }
  for (const auto& context : contexts_) {
    context->actors().quiesce(std::chrono::seconds{30});
  }
  while (!contexts_.empty()) {
    // Out of the list first: what ends it drives the others.
    const std::unique_ptr<RankContext> last = std::move(contexts_.back());
    contexts_.pop_back();
    if (const std::int64_t bytes = devices_.back()->bytes_allocated(); bytes != 0) {
      violated("8: nothing is left", std::to_string(bytes) + " bytes are left allocated on rank " +
                                         std::to_string(last->rank()));
    }
    devices_.pop_back();
  }
  if (actors_.runnable() > 0) {
    violated("8: nothing is left", std::to_string(actors_.runnable()) + " actors still have mail");
  }
}

void Simulation::run(const std::function<void(World&)>& body) {
  for (const auto& context : contexts_) {
    trainers_.push_back(
        std::make_unique<Fiber>([&body, &context = *context] { context.run(body); }));
  }
  plan_tick();
  drive([this] { return std::ranges::all_of(trainers_, &Fiber::ended); });
  timeline_.cancel(tick_);
  trainers_.clear();
}

void Simulation::sleep(int rank, Duration duration) {
  static_cast<void>(waiters_[static_cast<std::size_t>(rank)]->wait([] { return false; },
                                                                   timeline_.now() + duration));
}

void Simulation::freeze(int rank) {
  frozen_[static_cast<std::size_t>(rank)] = true;
  static_cast<void>(
      waiters_[static_cast<std::size_t>(rank)]->wait([] { return false; }, timeline_.now()));
}

void Simulation::enter_section(int rank) {
  if (options_.pace != Pace::instant) {
    return;
  }
  const std::size_t all = waiters_.size();
  exploring_ = static_cast<std::size_t>(++entered_) == all;
  if (exploring_) {
    for (const auto& waiter : waiters_) {
      waiter->notify();
    }
  } else {
    static_cast<void>(waiters_[static_cast<std::size_t>(rank)]->wait(
        [this] { return exploring_; }, timeline_.now() + simulated_time_limit));
  }
}

void Simulation::leave_section(int rank) {
  if (options_.pace == Pace::instant) {
    --entered_;
    static_cast<void>(waiters_[static_cast<std::size_t>(rank)]->wait(
        [this] { return !exploring_; }, timeline_.now() + simulated_time_limit));
  }
}

void Simulation::touched(std::uint64_t object, bool alone) {
  if (exploring_) {
    chooser_.touched(object, alone);
  }
}

/// By blocks; reads do not disturb each other. Memory of the trainer's own is one block.
void Simulation::touched_memory(int rank, const Access& access) {
  if (!exploring_ || access.bytes == 0) {
    return;
  }
  constexpr std::int64_t block_bytes = 16;
  const std::uint64_t of_rank = id_memory | static_cast<std::uint64_t>(rank) << 40;
  const auto place = devices_[static_cast<std::size_t>(rank)]->place_of(access.data);
  if (!place) {
    touched(of_rank | 0xff'ffff'ffffULL);
    return;
  }
  for (std::int64_t block = place->second / block_bytes;
       block <= (place->second + access.bytes - 1) / block_bytes; ++block) {
    touched(of_rank | place->first << 20 | static_cast<std::uint64_t>(block), access.writes);
  }
}

void Simulation::thaw() {
  std::fill(frozen_.begin(), frozen_.end(), false);
}

void Simulation::violated(const std::string& invariant, const std::string& text) {
  violated_(invariant, text);
}

/// What the comm thread does on a real machine.
void Simulation::plan_tick() {
  tick_ = timeline_.after(options_.network.timeout / 4, this, [this] {
    for (const auto& context : contexts_) {
      context->actors().tick();
    }
    plan_tick();
  });
}

void Simulation::sent(const ActorTag& to, const caf::type_erased_tuple& message) {
  Happening happening{.is_message = true, .message = decode(to, message), .at = timeline_.now()};
  note(happening);
  touched(id_of(to));
  if (happening.message.kind == Sent::Kind::failed ||
      happening.message.kind == Sent::Kind::unregister_runtime) {
    options_.hasty = false;
  }
  if (watcher_ != nullptr) {
    watcher_->sent(happening.message);
  }
}

}  // namespace troupe::test
