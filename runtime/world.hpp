/// A world: the ranks that train one model together, seen from one of them.
///
///     troupe::World::local(4).run([&](troupe::World& world) {
///       troupe::Runtime runtime(world, model, {});
///       …
///     });
///
/// `local(n)` makes n ranks that are threads of this process, each with a host device of its own;
/// `join()` makes this process one rank among others, on this host and elsewhere.
///
/// Thread rules: the calls of a rank (of its `World` and of all its `Runtime`s) form one sequence:
/// from any thread, never from two at once (refused with an `Error`). Errors: every collective call
/// throws `Error` with the first failure of the world, on every rank.
#pragma once

#include "troupe/core/error.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace troupe {

class Device;
class HostDevice;
class RankContext;
struct LaunchRecord;
class Trace;

struct WorldOptions {
  /// How long a collective waits for a rank that does not take part.
  std::chrono::milliseconds timeout = std::chrono::minutes{10};
  /// How long trainer and comm threads poll before they sleep. Not set: 50 µs if there is a core
  /// for each of them, else not at all.
  std::optional<std::chrono::microseconds> poll{};
  /// Receives a text when a rank fails: the error and its last launches. Not set: the log
  /// (spdlog's default logger, level error).
  std::function<void(const std::string&)> on_failure{};
  /// Receives a text when a choice of options costs speed and, in the process that serves the
  /// store, when that refuses or loses a client, on a thread of its own: must not block. Not set:
  /// the log, level warning.
  std::function<void(const std::string&)> on_warning{};
  /// Called for every collective as it is launched, with its rank; on the rank's comm thread.
  std::function<void(int rank, const LaunchRecord&)> on_launch{};
  /// Records what runs when (core/trace.hpp); outlives `run`. Null: nothing is recorded.
  Trace* trace = nullptr;
};

/// How a process finds the other ranks of its world.
struct JoinOptions {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  ///< among the ranks of this host
  /// The store (comm/store/store.hpp) of the world: rank 0 serves it, unless `external_store`.
  std::string store_host = "127.0.0.1";
  std::uint16_t store_port = 0;
  bool external_store = false;
  /// The job's secret; needed beyond loopback.
  std::string secret{};
  /// The address, or the interface, of this host that peers send payload to. Neither is set: the
  /// address from which this host reaches the store.
  std::string address{};
  std::string interface_name{};
  /// Adds contributions in the order of a ring instead of rank order: faster with many ranks, but
  /// no longer bit for bit what one process computes.
  bool ring_order = false;
  /// How long the ranks are waited for at the start.
  std::chrono::milliseconds join_timeout = std::chrono::minutes{5};
  /// A rank that gives no sign of life for so long has failed.
  std::chrono::milliseconds silence_limit = std::chrono::seconds{30};
  /// Where the failure of a world is written as JSON, "failure-<rank>.json"; empty: nowhere.
  std::string failure_directory{};

  /// What the launcher has set: torchrun, Slurm, Open MPI, MPICH (PMI) or troupe-run; one rank if
  /// nothing is set. docs/launching.md lists the variables. Throws `Error` (bad_configuration) that
  /// names variables which contradict each other, or are missing.
  static JoinOptions from_environment();
};

class World {
 public:
  class Local;
  class Joined;

  /// `ranks` threads of this process. Throws `Error` (bad_configuration) unless 1 ≤ ranks ≤ 256.
  static Local local(int ranks, WorldOptions options = {});

  /// This process is one rank of a world of processes; `run` of the result connects it. Throws
  /// `Error` (bad_configuration) for options that cannot be used.
  static Joined join(JoinOptions join, WorldOptions options = {});
  static Joined join(WorldOptions options = {});  ///< as the environment says

  /// Made by `Local`, or by tests from their own context.
  explicit World(RankContext& context) : context_(context) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() = default;

  int rank() const;
  int size() const;
  /// This rank's device: streams for computation come from here.
  Device& device();
  /// The same where it is the CPU, for trainers that issue host code on worker streams. Throws
  /// `Error` (misuse) where it is not.
  HostDevice& host_device();

  // The trainer's own collectives. They take tickets like those of the runtime: every rank calls
  // them at the same place of its sequence. They return when the result is there.

  /// values = sum over ranks, in rank order, in fp32.
  void all_reduce(std::span<float> values);
  /// everyone's values = those of `root`.
  void broadcast(std::span<float> values, int root);
  /// all (world_size · own.size()) = the ranks' `own`, one after the other.
  void all_gather(std::span<const float> own, std::span<float> all);
  void barrier();

  /// Whether any rank's process was asked to end (SIGTERM, which `Joined::run` takes once all ranks
  /// have joined): the same answer on every rank. A trainer asks between steps, saves, and returns.
  /// A collective like the others.
  bool stop_requested();

  RankContext& context() { return context_; }

 private:
  RankContext& context_;
};

/// The ranks of one process, ready to run.
class World::Local {
 public:
  Local(int ranks, WorldOptions options) : ranks_(ranks), options_(std::move(options)) {}

  /// Runs `body` on every rank, each on a thread of its own, and returns when all have ended. An
  /// exception that leaves a body ends the world: the others hear of it from their next call. Then
  /// `run` throws `Error` with the first failure; text and rank are those of the rank that failed
  /// first.
  void run(const std::function<void(World&)>& body) const;

 private:
  int ranks_;
  WorldOptions options_;
};

/// This process as one rank, ready to run.
class World::Joined {
 public:
  Joined(JoinOptions join, WorldOptions options)
      : join_(std::move(join)), options_(std::move(options)) {}

  const JoinOptions& join_options() const { return join_; }
  /// Connects to the other ranks, runs `body` on the calling thread, and returns when all ranks are
  /// done, so that none is cut off. Throws `Error` with the world's first failure, the same on
  /// every rank that lives.
  void run(const std::function<void(World&)>& body) const;

 private:
  JoinOptions join_;
  WorldOptions options_;
};

}  // namespace troupe
