/// A world: the ranks that train one model together, seen from one of them.
///
///     troupe::World::local(4).run([&](troupe::World& world) {
///       troupe::Runtime runtime(world, model, {});
///       …
///     });
///
/// `local(n)` makes n ranks that are threads of this process, each with a host device of its own.
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
  /// Receives a text when a choice of options costs speed. Not set: the log, level warning.
  std::function<void(const std::string&)> on_warning{};
  /// Called for every collective as it is launched, with its rank; on the rank's comm thread.
  std::function<void(int rank, const LaunchRecord&)> on_launch{};
  /// Records what runs when (core/trace.hpp); outlives `run`. Null: nothing is recorded.
  Trace* trace = nullptr;
};

class World {
 public:
  class Local;

  /// `ranks` threads of this process. Throws `Error` (bad_configuration) unless 1 ≤ ranks ≤ 256.
  static Local local(int ranks, WorldOptions options = {});

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

}  // namespace troupe
