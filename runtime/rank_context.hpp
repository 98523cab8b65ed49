/// All that belongs to one rank and is shared by its runtimes: device, queues, actors, the guard of
/// its call sequence, and what is left of runtimes that an exception unwound.
///
/// Trainers do not see it. `World::Local` makes it with threads; single-thread tests make it with
/// manual or simulated streams, a waiter of their own and the coordinator as executor.
#pragma once

#include "troupe/actors/rank_actors.hpp"
#include "troupe/comm/device.hpp"
#include "troupe/comm/fabric.hpp"
#include "troupe/core/trace.hpp"
#include "troupe/runtime/compute_log.hpp"
#include "troupe/runtime/rank_statement.hpp"
#include "troupe/runtime/world.hpp"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

class RuntimeImpl;

struct RankEnvironment {
  int rank = 0;
  ActorSystem* actors = nullptr;
  Fabric* fabric = nullptr;
  std::unique_ptr<Device> device;
  /// Outlives every thread of the world that may notify it, also those of other ranks.
  std::shared_ptr<Waiter> waiter;
  const Clock* clock = &Clock::steady();
  Duration timeout{};
  Duration comm_poll{};
  std::function<void(const std::string&)> log;  ///< failure dumps
  std::function<void(const std::string&)> warn;
  std::function<void(int, const LaunchRecord&)> on_launch;
  Trace* trace = nullptr;                            ///< null: nothing is recorded
  std::function<void(const LaunchDump&)> on_dump{};  ///< of a failure; on the comm thread
  std::function<bool()> stop_wished{};               ///< whether this process was asked to end
};

class RankContext {
 public:
  explicit RankContext(RankEnvironment environment);
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  int rank() const { return environment_.rank; }
  int size() const { return environment_.fabric->world_size(); }
  Device& device() { return *environment_.device; }
  RankActors& actors() { return *actors_; }
  /// The group of some ranks, ascending, this one among them; its communicators live as long as
  /// the context. Every rank asks for its groups in the same order.
  Group group(GroupAxis axis, const std::vector<int>& ranks);
  ComputeLog& compute_log() { return *compute_log_; }
  const Clock& clock() const { return *environment_.clock; }
  Duration timeout() const { return environment_.timeout; }
  bool stop_wished() const { return environment_.stop_wished && environment_.stop_wished(); }
  void log(const std::string& text) const;
  void warn(const std::string& text) const;

  /// This rank's turn in its sequence of calls. Throws if another call is under way.
  class [[nodiscard]] Turn {
   public:
    Turn(RankContext& context, const char* what);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    RankContext& context_;
  };

  /// One call of the trainer. Throws if another is under way, if an abandoned scope has ended the
  /// rank, or if the world has failed.
  class [[nodiscard]] Call {
   public:
    Call(RankContext& context, const char* what);

   private:
    Turn turn_;
  };

  /// An exception is unwinding a scope at `place` ("forward of unit 2 'L2'"): the rank is finished,
  /// and the world hears of it as soon as the exception's text is known, or at the next call.
  void abandon(std::string place);
  bool abandoned() const { return abandoned_.has_value(); }
  /// The world hears of an abandoned scope now, without the exception's text.
  void report_abandoned();
  /// Runs the trainer's body on the calling thread. The world hears how it ended; nothing is
  /// thrown.
  void run(const std::function<void(World&)>& body);
  /// The trainer's body was left by an exception: its code (if it was an `Error`) and text.
  void body_failed(Failure failure);
  /// Keeps what a runtime that is unwound has left until the failure is known everywhere.
  void leave_behind(std::shared_ptr<void> remains);

  /// All of the rank that exist, in the order of construction.
  void add(RuntimeImpl& runtime) { runtimes_.push_back(&runtime); }
  void remove(RuntimeImpl& runtime) { std::erase(runtimes_, &runtime); }
  /// `Runtime::abort_step`, for all runtimes of the rank; in rank_renewal.cpp. `step`: the one
  /// given up, for messages.
  void abort_step(std::uint64_t step, const std::string& reason);

  /// An update of one of the runtimes is complete.
  void note_update();

  /// For messages: steps that the runtimes of this rank have finished.
  std::uint64_t steps = 0;

 private:
  void report(Failure failure);
  void body_returned();
  void make_communicators();
  std::array<Communicator*, channel_count> communicators() const {
    return {gather_communicator_.get(), reduce_communicator_.get()};
  }

  void refuse_open_scopes() const;
  void fail_world(std::uint64_t step, const std::string& reason);
  RankStatement settle();
  std::string refusal();
  bool await(FunctionRef<bool()> ready, TimePoint deadline) const;
  Rendezvous::Words meet(std::uint64_t meeting, const std::string& word, const char* what);
  Failure absence(const Rendezvous::Absence& absent, Duration waited, const char* what) const;
  std::string because() const;
  [[noreturn]] void fail_for_good(Failure failure);
  void rebuild(std::span<const RankStatement> statements);

  RankEnvironment environment_;
  std::uint64_t epoch_ = 1;    ///< [Note: epochs] in comm/fabric.hpp
  std::uint64_t updates_ = 0;  ///< of all runtimes
  std::vector<RuntimeImpl*> runtimes_;
  std::unique_ptr<Communicator> gather_communicator_;
  std::unique_ptr<Communicator> reduce_communicator_;
  /// Besides the world's: gathers and reduces of each group.
  std::map<std::vector<int>, std::array<std::unique_ptr<Communicator>, channel_count>> groups_;
  std::unique_ptr<RankActors> actors_;
  std::unique_ptr<ComputeLog> compute_log_;
  std::vector<std::shared_ptr<void>> remains_;
  std::optional<std::string> abandoned_;
  std::atomic<const char*> calling_{nullptr};
};

}  // namespace troupe
