/// What simulation.cpp (setting up, trainers, sections) and simulation_steps.cpp (what happens
/// next) share. Private to the two.
#pragma once

#include "simulation.hpp"

namespace troupe::test {

/// No world takes longer, with all its deadlines.
inline constexpr Duration simulated_time_limit = std::chrono::hours{1};

inline std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  return (hash ^ word) * 1099511628211ULL;
}

/// Names for things that are the same in every run, for choosers: of actors, and of the rest. An
/// actor's kind takes bits 48 and up, too, its rank 32 and up, its runtime 24 and up.
inline std::uint64_t id_of(const ActorTag& tag) {
  constexpr std::uint64_t bucket_bits = 0xff'ffff;
  return (static_cast<std::uint64_t>(tag.kind) + 1) << 48 |
         static_cast<std::uint64_t>(tag.rank) << 32 | std::uint64_t{tag.runtime} << 24 |
         (tag.bucket & bucket_bits);
}

inline constexpr std::uint64_t id_trainer = std::uint64_t{16} << 48;
inline constexpr std::uint64_t id_stream = std::uint64_t{17} << 48;
inline constexpr std::uint64_t id_group = std::uint64_t{18} << 48;
inline constexpr std::uint64_t id_memory = std::uint64_t{32} << 48;
inline constexpr std::uint64_t id_world = std::uint64_t{20} << 48;

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
      looks_itself_ = deadline <= simulation_.timeline_.now() + look_interval_max;
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

  /// Whether what the fiber waits for is so, and nobody told it.
  bool overlooked() {
    return ready_ != nullptr && !notified_ && !expired_ && !looks_itself_ && (*ready_)();
  }

 private:
  /// Who waits no longer than that waits for a stream that tells nobody.
  static constexpr Duration look_interval_max = std::chrono::milliseconds{1};

  Simulation& simulation_;
  FunctionRef<bool()>* ready_ = nullptr;  // while the fiber waits
  bool looks_itself_ = false;
  bool notified_ = false;
  bool expired_ = false;
};

}  // namespace troupe::test
