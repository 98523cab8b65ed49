#include "simulation.hpp"

#include <algorithm>
#include <utility>

namespace troupe::test {

namespace {

constexpr std::size_t history_size = 100;
/// Hosts get something done before this much time has passed: only what devices do comes before
/// them, no deadline (unless the world is hasty).
constexpr Duration patience_limit = std::chrono::milliseconds{50};
/// No world takes longer, with all its deadlines.
constexpr Duration time_limit = std::chrono::hours{1};
constexpr std::uint64_t steps_limit = 5'000'000;

enum PaceKind : std::size_t {
  pace_trainer,
  pace_supervisor,
  pace_comm,
  pace_scheduler,
  pace_bucket,
  pace_time
};

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  return (hash ^ word) * 1099511628211ULL;
}

std::uint64_t id_of(const ActorTag& tag) {
  return (static_cast<std::uint64_t>(tag.kind) + 1) << 48 |
         static_cast<std::uint64_t>(tag.rank) << 32 | tag.bucket;
}

/// Kinds of names for things that are no actors; an actor's kind takes bits 48 and up, too.
constexpr std::uint64_t id_trainer = std::uint64_t{16} << 48;
constexpr std::uint64_t id_stream = std::uint64_t{17} << 48;
constexpr std::uint64_t id_group = std::uint64_t{18} << 48;
constexpr std::uint64_t id_memory = std::uint64_t{32} << 48;
constexpr std::uint64_t id_world = std::uint64_t{20} << 48;

PaceKind pace_of(ActorTag::Kind kind) {
  switch (kind) {
    case ActorTag::Kind::supervisor:
      return pace_supervisor;
    case ActorTag::Kind::comm:
      return pace_comm;
    case ActorTag::Kind::scheduler:
      return pace_scheduler;
    case ActorTag::Kind::bucket:
      return pace_bucket;
  }
  return pace_bucket;
}

}  // namespace

/// Of a rank's trainer, in its fiber; outside of any fiber (when the rank is ended) it drives the
/// simulation itself.
class Simulation::RankWaiter final : public Waiter {
 public:
  explicit RankWaiter(Simulation& simulation) : simulation_(simulation) {}

  void notify() override {
    notified_ = true;
    simulation_.timeline_.touch(this, false);
  }

  bool wait(FunctionRef<bool()> ready, TimePoint deadline) override {
    if (ready()) {
      return true;
    }
    expired_ = false;
    const Timeline::Id timer = simulation_.timeline_.at(deadline, this, [this] {
      expired_ = true;
      simulation_.timeline_.touch(this);
    });
    if (Fiber::current() == nullptr) {
      simulation_.drive([&] { return expired_ || ready(); });
    } else {
      notified_ = false;
      ready_ = &ready;
      Fiber::pause();
      ready_ = nullptr;
    }
    simulation_.timeline_.cancel(timer);
    return ready();
  }

  /// Whether the fiber may go on.
  bool may_go_on() {
    if (ready_ == nullptr || expired_) {
      return true;
    }
    if (notified_ && !(*ready_)()) {
      notified_ = false;
    }
    return notified_;
  }

 private:
  Simulation& simulation_;
  FunctionRef<bool()>* ready_ = nullptr;  // while the fiber waits
  bool notified_ = false;
  bool expired_ = false;
};

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
    static_cast<void>(waiters_[static_cast<std::size_t>(rank)]->wait([this] { return exploring_; },
                                                                     timeline_.now() + time_limit));
  }
}

void Simulation::leave_section(int rank) {
  if (options_.pace == Pace::instant) {
    --entered_;
    static_cast<void>(waiters_[static_cast<std::size_t>(rank)]->wait([this] { return !exploring_; },
                                                                     timeline_.now() + time_limit));
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

void Simulation::drive(const std::function<bool()>& until) {
  while (!until()) {
    step();
  }
}

std::uint32_t Simulation::weight(int rank, std::size_t kind) const {
  return options_.weights.empty() ? 1 : options_.weights[static_cast<std::size_t>(rank)][kind];
}

void Simulation::collect() {
  candidates_.clear();
  what_.clear();
  const bool timed = options_.pace == Pace::timed;
  const auto add = [&](Candidate candidate, std::uint64_t id, std::uint32_t likely) {
    what_.push_back(candidate);
    candidates_.push_back({id, likely});
  };
  for (std::size_t index = 0; index < actors_.runnable(); ++index) {
    const ActorTag& tag = actors_.runnable_tag(index);
    if (!frozen(tag.rank)) {
      add({Candidate::Kind::actor, index}, id_of(tag), weight(tag.rank, pace_of(tag.kind)));
      if (timed) {
        return;
      }
    }
  }
  for (std::size_t rank = 0; rank < trainers_.size(); ++rank) {
    if (!trainers_[rank]->ended() && !frozen_[rank] && waiters_[rank]->may_go_on()) {
      add({Candidate::Kind::trainer, rank}, id_trainer | rank,
          weight(static_cast<int>(rank), pace_trainer));
      if (timed) {
        return;
      }
    }
  }
  // What is due now ends in any order on real devices; `timed` keeps the order of planning.
  const std::size_t next =
      timed ? std::min<std::size_t>(timeline_.next_count(), 1) : timeline_.next_count();
  const Duration ahead = next > 0 ? timeline_.due(0) - timeline_.now() : Duration::zero();
  const Duration patience = options_.pace == Pace::instant ? Duration::zero() : patience_limit;
  if (ahead > patience && (!candidates_.empty() || exploring_)) {
    return add_haste(next);
  }
  for (std::size_t index = 0; index < next; ++index) {
    add({Candidate::Kind::time, index},
        options_.pace == Pace::instant ? stable_id(timeline_.owner(index)) : id_world,
        weight(0, pace_time));
  }
  add_haste(next);
}

/// Points of time beyond the first `passed` may come first: what was planned earlier takes longer.
/// Not after a failure: what follows it is quick on any machine.
void Simulation::add_haste(std::size_t passed) {
  if (options_.hasty && timeline_.size() > passed) {
    what_.push_back({Candidate::Kind::late_time, passed});
    candidates_.push_back({~std::uint64_t{0}, 1});
  }
}

void Simulation::step() {
  collect();
  if (candidates_.empty() && exploring_ && entered_ == 0) {
    exploring_ = false;
    for (const auto& waiter : waiters_) {
      waiter->notify();
    }
    return;
  }
  if (candidates_.empty()) {
    if (std::ranges::find(frozen_, true) != frozen_.end()) {
      thaw();
      return;
    }
    violated("L: every step ends", "nothing can happen any more, and not all ranks have ended");
    std::abort();  // there is no way on
  }
  std::size_t index = 0;
  if (options_.pace == Pace::instant ? exploring_ : candidates_.size() > 1) {
    index = chooser_.choose(candidates_);
  }
  hash_ = mix(mix(hash_, index), candidates_.size());
  const Candidate chosen = what_[index];
  happen(chosen);
  const bool others_ended = [&] {
    for (std::size_t rank = 0; rank < trainers_.size(); ++rank) {
      if (!frozen_[rank] && !trainers_[rank]->ended()) {
        return false;
      }
    }
    return true;
  }();
  if (others_ended) {
    thaw();
  }
  ++steps_;
  if (steps_ > steps_limit || timeline_.now() > TimePoint{} + time_limit) {
    violated("L: every step ends",
             "after " + std::to_string(steps_) + " steps and " +
                 std::to_string(std::chrono::duration_cast<std::chrono::seconds>(
                                    timeline_.now().time_since_epoch())
                                    .count()) +
                 " s of virtual time not all ranks have ended");
    std::abort();
  }
}

/// A name for an object that is the same in every run; addresses are not.
std::uint64_t Simulation::stable_id(const void* object) const {
  for (std::size_t rank = 0; rank < waiters_.size(); ++rank) {
    if (waiters_[rank].get() == object) {
      return id_trainer | rank;
    }
  }
  for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
    const auto& streams = devices_[rank]->streams();
    for (std::size_t index = 0; index < streams.size(); ++index) {
      if (streams[index].get() == object) {
        return id_stream | static_cast<std::uint64_t>(rank) << 16 | index;
      }
    }
  }
  const auto group = fabric_.group_index(object);
  return group ? id_group | *group : id_world;
}

void Simulation::happen(Candidate candidate) {
  Happening happening{.kind = candidate.kind, .message = {}, .at = timeline_.now()};
  switch (candidate.kind) {
    case Candidate::Kind::actor: {
      const ActorTag tag = actors_.runnable_tag(candidate.index);
      happening.message.to = tag;
      note(happening);
      touched(id_of(tag));
      actors_.run(candidate.index);
      if (watcher_ != nullptr) {
        watcher_->handled(tag);
      }
      break;
    }
    case Candidate::Kind::trainer:
      happening.rank = static_cast<int>(candidate.index);
      note(happening);
      touched(id_trainer | candidate.index);
      trainers_[candidate.index]->resume();
      break;
    case Candidate::Kind::time:
      timeline_.run(candidate.index);
      happening.at = timeline_.now();
      note(happening);
      break;
    case Candidate::Kind::late_time:
      timeline_.run(candidate.index + chooser_.draw(timeline_.size() - candidate.index));
      happening.at = timeline_.now();
      note(happening);
      break;
  }
}

void Simulation::sent(const ActorTag& to, const caf::type_erased_tuple& message) {
  Happening happening{.is_message = true, .message = decode(to, message), .at = timeline_.now()};
  note(happening);
  touched(id_of(to));
  if (happening.message.kind == Sent::Kind::failed) {
    options_.hasty = false;
  }
  if (watcher_ != nullptr) {
    watcher_->sent(happening.message);
  }
}

void Simulation::note(const Happening& happening) {
  history_[happened_++ % history_.size()] = happening;
}

std::vector<std::string> Simulation::history() const {
  std::vector<std::string> lines;
  const std::size_t first = happened_ > history_.size() ? happened_ - history_.size() : 0;
  for (std::size_t i = first; i < happened_; ++i) {
    const Happening& each = history_[i % history_.size()];
    const auto time =
        std::chrono::duration_cast<std::chrono::microseconds>(each.at.time_since_epoch());
    std::string line = std::to_string(time.count()) + " us  ";
    if (each.is_message) {
      line += "  to " + to_string(each.message);
    } else if (each.kind == Candidate::Kind::actor) {
      line += to_string(each.message.to) + " handles its oldest message";
    } else if (each.kind == Candidate::Kind::trainer) {
      line += "trainer of rank " + std::to_string(each.rank) + " goes on";
    } else {
      line += each.kind == Candidate::Kind::time ? "time passes" : "time passes, out of turn";
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace troupe::test
