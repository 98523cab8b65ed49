/// What one simulated training looks like: a model, options, programs of its steps, how fast ranks
/// and network are, and what goes wrong. Drawn from a seed; the schedule is not part of it.
#pragma once

#include "model_options.hpp"
#include "troupe/test/support/reference.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::test {

/// Something that goes wrong, where the real world has it.
struct PlannedFault {
  enum class Kind : std::uint8_t {
    none,
    collective_error,  ///< the `at`-th collective of the world ends with an error on `rank`
    collective_hang,   ///< … never ends
    device_error,      ///< the `at`-th piece of work on `rank`'s device fails
    exception,         ///< `rank`'s trainer throws before its `at`-th operation
    death,             ///< `rank` stands still from its `at`-th operation on
    haste,             ///< deadlines may come while everybody is only slow
    disagreement,      ///< `rank` makes other calls, or ranks have too few gradient slots to differ
  } kind = Kind::none;
  int rank = 0;
  std::uint64_t at = 0;
};

const char* to_string(PlannedFault::Kind kind);

/// A trainer gives a step up: all ranks do, and go on with the next one.
struct GivenUp {
  std::size_t step = 0;
  int rank = 0;
  std::uint64_t at = 0;  ///< before this operation of the step, or, if there are less, at its end
  bool inside = false;   ///< in the use that the operation begins, if it is one
};

struct ModelWorld {
  Model model;
  Options options;
  int ranks = 1;
  std::vector<StepProgram> steps;
  bool worker_stream = false;  ///< computation on a stream, not on the trainer's thread
  bool two_streams = false;    ///< uses take turns on two streams, second updates have one
  bool worker_update = false;  ///< the same for updates, …
  bool mixed_updates = false;  ///< … every second one only
  bool update_again = false;   ///< a second update, by the trainer's thread, after each
  /// An update that changes nothing, inside each micro-batch before this operation, if it may be
  /// there; 0: none.
  std::size_t update_before = 0;
  bool update_backwards = false;      ///< buckets are updated last to first
  bool explore_update = true;         ///< Pace::instant: also the end of the step and the update
  bool all_reduce_each_step = false;  ///< a collective of the trainer's own
  bool update_frozen = true;          ///< updates look at the shards of frozen buckets, too
  std::uint64_t reshard_every = 0;    ///< operations; 0: never. Under full_shard only
  /// Another model in the same world, with a runtime of its own; null: there is none. Its trainer
  /// does something whenever this one has done `second_every` things or, where ranks differ, some
  /// things between micro-batches.
  std::shared_ptr<const ModelWorld> second;
  std::uint64_t second_every = 1;
  int reference_rank = 0;  ///< whose decisions are compared with the rules
  PlannedFault fault;
  std::vector<GivenUp> given_up;
  /// Per step, the rank whose gradients become infinite, or -1; empty: nobody measures gradients.
  std::vector<int> overflow_rank;
  /// Per rank: see SimulationOptions::weights.
  std::vector<std::array<std::uint32_t, 6>> weights;
  /// Upper limits of what is drawn for each piece of work, in microseconds.
  std::uint64_t compute_time = 1;
  std::uint64_t update_time = 1;
  std::uint64_t kernel_time = 2;
  std::uint64_t collective_time = 1;

  /// Whether some rank leaves out a use of some unit.
  bool ranks_differ() const;
  /// Whether the reference knows what comes out: not if a rank leaves uses out that it should have
  /// skipped, and the launches do not show it.
  bool values_known() const;
  bool disagrees(int rank) const {
    return fault.kind == PlannedFault::Kind::disagreement && fault.rank == rank;
  }
  bool gives_up(std::size_t step) const;
  /// Whether some gradient of the step is infinite: its rank has contributed to one.
  bool overflows(std::size_t step) const;
  /// For reports: "3 ranks, 5 units, 7 buckets, 2 steps, full_shard, depth 2 …"
  std::string text() const;
};

ModelWorld random_world(std::uint64_t seed);

/// The weights and gradients of every step, from the reference, which knows nothing of the runtime.
struct Expected {
  explicit Expected(const ModelWorld& world);
  /// (steps + 1) (parameters) (elements): before each step, and at the end. One that is given up,
  /// or left out because gradients overflow, changes nothing.
  std::vector<std::vector<std::vector<float>>> weights;
  /// (steps) (parameters) (elements): averaged; nothing of such a step.
  std::vector<std::vector<std::vector<float>>> gradients;
};

}  // namespace troupe::test
