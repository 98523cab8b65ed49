#include "outcome.hpp"

#include "invariants.hpp"
#include "model_trainer.hpp"

#include <algorithm>
#include <optional>

namespace troupe::test {

namespace {

constexpr const char* liveness = "L: every step ends";
constexpr const char* same_error = "F: all ranks end with the same first error, in bounded time";
constexpr const char* planned_exception = "planned exception";
constexpr const char* nothing_left = "8: nothing is left";
/// All deadlines of a world one after the other.
constexpr Duration failure_time_limit = std::chrono::minutes{2};
/// From the first failure on nobody needs a deadline: what is on the trainers' streams ends.
constexpr Duration time_limit_after_failure = std::chrono::seconds{1};

/// What the world does to the simulation: how long things take, and what goes wrong.
class Circumstances {
 public:
  Circumstances(const ModelWorld& world, Chooser& chooser) : world_(world), chooser_(chooser) {}

  SimulationOptions options(Pace pace) {
    SimulationOptions options;
    options.ranks = world_.ranks;
    options.pace = pace;
    options.weights = world_.weights;
    options.hasty = world_.fault.kind == PlannedFault::Kind::haste;
    if (pace == Pace::any_order) {
      options.network.time = [this](const CollectiveCall&, int) {
        return std::chrono::microseconds{chooser_.draw(world_.collective_time)};
      };
      options.network.delay = [this](int) { return std::chrono::microseconds{chooser_.draw(3)}; };
      options.kernel_time = [this](std::int64_t) {
        return std::chrono::microseconds{chooser_.draw(world_.kernel_time)};
      };
    }
    options.network.fault = [this](const CollectiveCall&) { return next_collective(); };
    options.device_fault = [this](int rank, const std::string& stream) {
      return next_work(rank, stream);
    };
    return options;
  }

 private:
  SimulatedFault next_collective() {
    const PlannedFault& fault = world_.fault;
    if (collectives_++ != fault.at) {
      return {};
    }
    switch (fault.kind) {
      case PlannedFault::Kind::collective_error:
        return {SimulatedFault::Kind::error, fault.rank};
      case PlannedFault::Kind::collective_hang:
        return {SimulatedFault::Kind::hang, fault.rank};
      default:
        return {};
    }
  }

  std::optional<Failure> next_work(int rank, const std::string& stream) {
    const PlannedFault& fault = world_.fault;
    if (fault.kind != PlannedFault::Kind::device_error || rank != fault.rank ||
        work_++ != fault.at) {
      return std::nullopt;
    }
    return Failure{.code = ErrorCode::device, .text = "stream '" + stream + "': planned error"};
  }

  const ModelWorld& world_;
  Chooser& chooser_;
  std::uint64_t collectives_ = 0;
  std::uint64_t work_ = 0;
};

/// How a rank's trainer ended.
struct Ending {
  bool returned = false;
  bool planned = false;  ///< by the exception that was planned
  bool misuse = false;   ///< since a call of its own was refused
  std::string text;
};

/// Tells the invariants of a runtime, as long as it lives.
class Registration {
 public:
  Registration(Invariants& all, int rank, std::uint32_t number, Runtime& runtime)
      : all_(all), rank_(rank), number_(number) {
    all.runtime_begins(rank, number, runtime);
  }
  ~Registration() { all_.runtime_ends(rank_, number_); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  Invariants& all_;
  const int rank_;
  const std::uint32_t number_;
};

/// What one rank does.
void train(Simulation& simulation,
           const ModelWorld& world,
           const Expected& expected,
           const std::optional<Expected>& of_second,
           World& of_rank,
           Invariants& invariants) {
  const bool two = world.second != nullptr;
  ModelTrainer trainer(simulation, world, expected, of_rank, two);
  const Registration registration(invariants, of_rank.rank(), 1, trainer.runtime());
  if (!two) {
    trainer.train(nullptr);
    return;
  }
  ModelTrainer second(simulation, *world.second, *of_second, of_rank, two);
  const Registration of_its_runtime(invariants, of_rank.rank(), 2, second.runtime());
  trainer.train(&second);
}

void check_ending(Simulation& simulation,
                  const ModelWorld& world,
                  const std::vector<Ending>& endings,
                  const std::optional<Failure>& failure,
                  std::optional<TimePoint> failed_at) {
  if (!failure) {
    for (const Ending& ending : endings) {
      if (!ending.returned) {
        simulation.violated(
            same_error, "a trainer ended with '" + ending.text + "', but the world has not failed");
      }
    }
    return;
  }
  if (world.fault.kind == PlannedFault::Kind::none) {
    simulation.violated(liveness, "without a fault the world failed: " + failure->text);
  }
  if (std::ranges::any_of(endings, &Ending::planned) &&
      failure->text.find(planned_exception) == std::string::npos) {
    simulation.violated(
        same_error, "an exception ended a rank, but the first error is '" + failure->text + "'");
  }
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    const Ending& ending = endings[rank];
    const bool own =
        ending.planned || (ending.misuse && world.fault.kind == PlannedFault::Kind::disagreement);
    if (!ending.returned && !own && ending.text != failure->text) {
      simulation.violated(same_error, "rank " + std::to_string(rank) + " ended with '" +
                                          ending.text + "', the first error is '" + failure->text +
                                          "'");
    }
    const RankState& state = simulation.context(static_cast<int>(rank)).actors().state();
    if (state.failed && state.failure.text != failure->text) {
      simulation.violated(same_error, "rank " + std::to_string(rank) + " knows of '" +
                                          state.failure.text + "', the first error is '" +
                                          failure->text + "'");
    }
  }
  if (world.fault.kind == PlannedFault::Kind::haste) {
    return;
  }
  const TimePoint now = simulation.timeline().now();
  if (now > TimePoint{} + failure_time_limit ||
      (failed_at && now > *failed_at + time_limit_after_failure)) {
    simulation.violated(same_error, "the ranks took too long to end");
  }
}

}  // namespace

Outcome run_world(const ModelWorld& world,
                  const Expected& expected,
                  Pace pace,
                  Chooser& chooser,
                  const ViolationHandler& violated) {
  Circumstances circumstances(world, chooser);
  const Simulation* seen = nullptr;  // also while it ends
  auto simulation =
      std::make_unique<Simulation>(circumstances.options(pace), chooser,
                                   [&](const std::string& invariant, const std::string& text) {
                                     violated(invariant, text, *seen);
                                   });
  seen = simulation.get();
  Simulation& running = *simulation;
  const bool disagreement = world.fault.kind == PlannedFault::Kind::disagreement;
  Invariants invariants(running,
                        disagreement ? std::nullopt : std::optional<int>(world.reference_rank));
  const std::optional<Expected> of_second =
      world.second != nullptr ? std::optional<Expected>(*world.second) : std::nullopt;
  running.watch(&invariants);
  std::vector<Ending> endings(static_cast<std::size_t>(world.ranks));
  running.run([&](World& of_rank) {
    Ending& ending = endings[static_cast<std::size_t>(of_rank.rank())];
    try {
      train(running, world, expected, of_second, of_rank, invariants);
      ending.returned = true;
    } catch (const Error& error) {
      ending.text = error.what();
      ending.misuse = error.code() == ErrorCode::misuse;
      throw;
    } catch (const std::exception& exception) {
      ending.text = exception.what();
      ending.planned = ending.text == planned_exception;
      throw;
    }
  });
  const std::optional<Failure> failure = running.fabric().first_failure().get();
  check_ending(running, world, endings, failure, invariants.failed_at());
  for (int rank = 0; rank < world.ranks; ++rank) {
    if (!running.context(rank).actors().quiesce(std::chrono::seconds{30})) {
      running.violated(nothing_left, "collectives of rank " + std::to_string(rank) +
                                         " are under way after the end");
    }
  }
  invariants.expect_all_answered();
  Outcome outcome{.steps = running.steps(),
                  .messages = invariants.messages(),
                  .hash = running.hash(),
                  .failure = failure ? failure->text : "",
                  .launches = invariants.launches()};
  for (const std::string& log : running.logs()) {
    if (log.find("left behind") != std::string::npos ||
        log.find("did not end") != std::string::npos ||
        log.find("leaving them") != std::string::npos ||
        log.find("still under way") != std::string::npos) {
      running.violated(nothing_left, log);
    }
  }
  if (running.accesses().size() > 0) {
    running.violated(nothing_left, "buffers are in use after the end");
  }
  // Its end is part of the run: what it does may violate something, too.
  simulation.reset();
  return outcome;
}

}  // namespace troupe::test
