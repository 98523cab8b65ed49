/// Ranks in virtual time, on one thread: the real runtime and its real actors on simulated devices
/// and a simulated network. Trainers are fibers, actors are run message by message.
///
/// [Note: what may happen] In `Pace::any_order` a chooser decides what comes next among: an actor
/// with mail handles one message; a trainer that may go on does so until it waits; the next point
/// of time comes. In `Pace::timed` hosts cost no time: messages first, then trainers, then time, so
/// that step times are exact. In `Pace::instant` nothing takes time, and every order of what ends
/// on devices is a choice, too (for exhaustive exploration).
///
/// A trainer that waits is looked at again only when it was notified or its deadline has come, as
/// on a real machine: a forgotten notification shows.
#pragma once

#include "chooser.hpp"
#include "message.hpp"
#include "troupe/comm/simulated/simulated_device.hpp"
#include "troupe/comm/simulated/simulated_fabric.hpp"
#include "troupe/runtime/rank_context.hpp"
#include "troupe/test/support/fiber.hpp"

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::test {

enum class Pace : std::uint8_t { timed, any_order, instant };

/// Kinds of what goes on, for weights: the ranks' trainers, their actors by kind, time.
inline constexpr std::size_t pace_kinds = 6;

struct SimulationOptions {
  int ranks = 1;
  Pace pace = Pace::timed;
  SimulatedNetwork network{};
  /// Of kernels on streams, by bytes; empty: no time.
  std::function<Duration(std::int64_t bytes)> kernel_time{};
  /// Asked before each piece of work on a stream of a rank; see SimulatedSurroundings.
  std::function<std::optional<Failure>(int rank, const std::string& stream)> device_fault{};
  /// any_order: per rank, how likely trainer, supervisor, comm, scheduler, buckets and time go on.
  std::vector<std::array<std::uint32_t, pace_kinds>> weights{};
  Trace* trace = nullptr;
  /// any_order: time may come out of turn, so that deadlines pass while devices are slow.
  bool hasty = false;
};

/// Looks on; calls `Simulation::violated` when something is wrong.
class Watcher {
 public:
  Watcher() = default;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  virtual ~Watcher() = default;
  virtual void sent(const Sent& /*message*/) {}
  virtual void launched(int /*rank*/, const LaunchRecord& /*record*/) {}
  /// An actor has handled its oldest message.
  virtual void handled(const ActorTag& /*actor*/) {}
};

class Simulation final : private MessageObserver {
 public:
  /// `violated(invariant, text)` hears of what must not be; it may leave the process.
  using Violated = std::function<void(const std::string& invariant, const std::string& text)>;

  Simulation(SimulationOptions options, Chooser& chooser, Violated violated);
  /// Ends the ranks; drives the simulation meanwhile.
  ~Simulation() override;
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// Watchers outlive the simulation, or are removed.
  void watch(Watcher* watcher) { watcher_ = watcher; }
  /// Runs `body` on every rank until all have ended.
  void run(const std::function<void(World&)>& body);

  // For trainers.

  /// A trainer's time passes: it computes on its own thread.
  void sleep(int rank, Duration duration);
  /// The rank stands still from here on: nothing of its trainer and its actors is run until all
  /// other ranks have ended.
  void freeze(int rank);
  /// Pace::instant: only what happens between these is chosen by the chooser; the rest goes the
  /// plainest way. The ranks wait for each other when they enter; they leave when nothing is under
  /// way any more, so that every order of the section is complete.
  void enter_section(int rank);
  void leave_section(int rank);
  SimulatedDevice& device(int rank) { return *devices_[static_cast<std::size_t>(rank)]; }

  void violated(const std::string& invariant, const std::string& text);

  // Views.

  Timeline& timeline() { return timeline_; }
  AccessLog& accesses() { return accesses_; }
  const SimulatedFabric& fabric() const { return fabric_; }
  RankContext& context(int rank) { return *contexts_[static_cast<std::size_t>(rank)]; }
  int ranks() const { return options_.ranks; }
  Chooser& chooser() { return chooser_; }
  std::uint64_t steps() const { return steps_; }
  /// Of everything that happened: equal runs have equal hashes.
  std::uint64_t hash() const { return hash_; }
  /// The last things that happened, oldest first.
  std::vector<std::string> history() const;
  /// What the ranks logged: failure dumps, and complaints about what did not end.
  const std::vector<std::string>& logs() const { return logs_; }

 private:
  class RankWaiter;

  /// One thing that may happen next, beside its `Option`.
  struct Candidate {
    enum class Kind : std::uint8_t { actor, trainer, time, late_time } kind = Kind::actor;
    std::size_t index = 0;
  };
  struct Happening {
    Candidate::Kind kind = Candidate::Kind::actor;
    bool is_message = false;
    Sent message;
    int rank = 0;
    TimePoint at;
  };

  void sent(const ActorTag& to, const caf::type_erased_tuple& message) override;
  void drive(const std::function<bool()>& until);
  void step();
  void collect();
  void add_haste(std::size_t passed);
  bool frozen(int rank) const { return frozen_[static_cast<std::size_t>(rank)]; }
  void thaw();
  void happen(Candidate candidate);
  void note(const Happening& happening);
  void plan_tick();
  std::uint32_t weight(int rank, std::size_t kind) const;
  std::uint64_t stable_id(const void* object) const;
  void touched(std::uint64_t object, bool alone = true);
  void touched_memory(int rank, const Access& access);

  SimulationOptions options_;
  Chooser& chooser_;
  Violated violated_;
  Watcher* watcher_ = nullptr;
  Timeline timeline_;
  AccessLog accesses_;
  SimulatedFabric fabric_;
  ActorSystem actors_;
  std::vector<std::shared_ptr<RankWaiter>> waiters_;
  std::vector<std::unique_ptr<RankContext>> contexts_;
  std::vector<SimulatedDevice*> devices_;
  std::vector<std::unique_ptr<Fiber>> trainers_;
  std::vector<bool> frozen_;
  std::vector<Option> candidates_;
  std::vector<Candidate> what_;
  std::vector<Happening> history_;  // a ring
  std::size_t happened_ = 0;
  std::vector<std::string> logs_;
  Timeline::Id tick_ = 0;
  int entered_ = 0;  ///< ranks that are in the section
  bool exploring_ = false;
  std::uint64_t steps_ = 0;
  std::uint64_t hash_ = 14695981039346656037ULL;
};

}  // namespace troupe::test
