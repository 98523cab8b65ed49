/// Strategies and variants for random worlds, and what they ask of programs: the options to draw,
/// the room that programs need under them, and which uses ranks may leave out.
#pragma once

#include "troupe/test/support/program_random.hpp"

#include <vector>

namespace troupe::test {

/// Whether launches follow the order that ranks agree on, not the uses.
bool is_agreed(const Options& options);

/// About half are plain full sharding; the others are drawn from all strategies and variants that
/// the ranks can be divided for. Without any count of slots.
Options random_strategy(Random& random, const Model& model, int ranks);

/// Whether ranks that leave units out under an agreed order get a gradient slot for each bucket.
/// With fewer, buckets go out of turn on some of them.
enum class Differing { has_room, has_no_room };

/// Sets the counts of slots to what does for the programs, exactly or with some to spare.
void make_room(Random& random,
               Options& options,
               const Model& model,
               int ranks,
               const std::vector<StepProgram>& steps,
               Differing differing);

/// Under an agreed order, which reduces each bucket once in a micro-batch: whether the program, as
/// each rank runs it, never comes back to a bucket that was reduced, or may have been.
bool reduces_once(const MicroBatchProgram& program, const BucketPlan& plan, int ranks);

/// Lets some ranks leave some units out. Under an agreed order all their uses; else those that
/// nothing lies in, for which `skip` stands.
void leave_out(
    Random& random, MicroBatchProgram& program, const Model& model, int ranks, bool agreed);

/// "sharded_optimizer, 2 replicas, gradients kept"
std::string describe(const Options& options);

}  // namespace troupe::test
