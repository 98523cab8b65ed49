/// Uniform layers in virtual time, hosts that cost nothing: what a step takes is exact, and known
/// by formula.
#pragma once

#include "simulation.hpp"
#include "troupe/runtime/runtime.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe::test {

using Milliseconds = std::chrono::milliseconds;

struct TimedLayers {
  std::size_t layers = 32;
  Duration forward{};
  Duration backward{};
  Duration gather{};
  Duration reduce{};
  bool one_link = false;         ///< gathers and reduces share a link
  bool host_runs_ahead = false;  ///< computation is issued to a stream; else the trainer computes
  int ranks = 2;
};

inline Options timed_options(int slots, int depth, int gradient_slots) {
  return {.slots = slots, .gradient_slots = gradient_slots, .prefetch_depth = depth};
}

inline Model timed_model(std::size_t layers) {
  Model model;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    model.add_parameter(model.add_unit("L" + std::to_string(layer)), {.name = "w", .shape = {4}});
  }
  return model;
}

/// What rank 0 saw.
struct TimedRun {
  /// Per step: when the computation of each forward and backward ended, in program order; and the
  /// step's begin and end.
  struct Step {
    TimePoint begin{};
    TimePoint end{};
    std::vector<TimePoint> forwards;
    std::vector<TimePoint> backwards;
    Duration total() const { return end - begin; }
  };
  std::vector<Step> steps;
  Report report;
};

/// One rank's computation of a layer.
class TimedCompute {
 public:
  TimedCompute(Simulation& simulation, int rank, bool on_stream)
      : simulation_(simulation), rank_(rank) {
    if (on_stream) {
      stream_ = &simulation.device(rank).create_simulated_stream("compute");
    }
  }
  SimulatedStream* stream() const { return stream_; }
  void run(Duration time, std::vector<TimePoint>& ends) const {
    if (stream_ == nullptr) {
      if (time > Duration::zero()) {
        simulation_.sleep(rank_, time);
      }
      ends.push_back(simulation_.timeline().now());
    } else {
      stream_->run("layer", ends.size(), time, {},
                   [this, &ends] { ends.push_back(simulation_.timeline().now()); });
    }
  }
  /// Until the stream is empty.
  void synchronize() const {
    while (stream_ != nullptr && !stream_->idle()) {
      simulation_.sleep(rank_, std::chrono::microseconds{1});
    }
  }

 private:
  Simulation& simulation_;
  const int rank_;
  SimulatedStream* stream_ = nullptr;
};

inline SimulationOptions timed_simulation(const TimedLayers& layers) {
  SimulationOptions options;
  options.ranks = layers.ranks;
  options.network.one_link = layers.one_link;
  options.network.time = [layers](const CollectiveCall& call, int) {
    if (call.bucket == no_bucket) {
      return Duration::zero();
    }
    switch (call.op) {
      case Collective::all_gather:
      case Collective::broadcast:
        return layers.gather;
      case Collective::reduce_scatter:
      case Collective::reduce:
        return layers.reduce;
      case Collective::all_reduce:
      case Collective::barrier:
        break;
    }
    return Duration::zero();
  };
  return options;
}

/// Trains `steps` steps of one micro-batch each.
TimedRun run_timed(const TimedLayers& layers, const Options& options, int steps);

}  // namespace troupe::test
