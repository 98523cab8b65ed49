/// Runs programs of the toy on a world of threads and on the reference, and compares everything:
/// parameters and losses bit for bit, launches between the ranks, and what is left over.
#pragma once

#include "program_facts.hpp"
#include "toy_trainer.hpp"
#include "troupe/runtime/rank_context.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {

struct ProgramRun {
  Model model;
  Options options;
  int ranks = 1;
  std::vector<StepProgram> steps;
  OptimizerKind optimizer = OptimizerKind::sgd;
  bool worker_stream = false;
  bool own_collectives = false;  ///< the trainer's, behind micro-batches, steps and updates
  std::uint32_t jitter = 0;      ///< other than 0: hosts pause between events, as this seed has it
};

/// Collects what is wrong on one rank; written by its thread only.
struct Complaints {
  std::vector<std::string> texts;
  void unless(bool holds, const std::string& text) {
    constexpr std::size_t enough = 5;
    if (!holds && texts.size() < enough) {
      texts.push_back(text);
    }
  }
};

/// One rank's training, which it checks as it goes.
class ProgramRank {
 public:
  ProgramRank(World& world, const ProgramRun& run, Complaints& complaints)
      : world_(world),
        run_(run),
        own_(complaints),
        runtime_(world, run.model, run.options),
        memory_(runtime_.memory_plan()),
        counters_(world.device().counters()),
        random_(run.jitter * 7919 + static_cast<std::uint32_t>(world.rank())) {
    // The order that is predicted, and agreed on, at first is that of registration.
    for (const std::vector<BucketId>& buckets : runtime_.bucket_plan().unit_buckets) {
      std::ranges::copy_if(buckets, std::back_inserter(order_), [&](BucketId bucket) {
        return std::ranges::count(order_, bucket) == 0;
      });
    }
  }

  /// Losses per step and micro-batch.
  std::vector<std::vector<float>> train(const ReferenceResult& expected) {
    ToyTrainer trainer{runtime_, world_.rank()};
    if (run_.worker_stream) {
      trainer.stream = &world_.host_device().create_host_stream("compute");
    }
    if (run_.jitter != 0) {
      trainer.pause = [this] { pause(); };
    }
    ToyOptimizer optimizer{run_.optimizer};
    const auto own_collective = [&] {
      std::array<float, 3> values{1.0F, 2.0F, static_cast<float>(world_.rank())};
      world_.all_reduce(values);
      own_.unless(values[1] == static_cast<float>(2 * world_.size()), "own all_reduce");
    };
    if (run_.own_collectives) {
      trainer.between = own_collective;
    }
    trainer.initialize();
    std::vector<std::vector<float>> losses;
    std::int64_t allocations = 0;
    for (std::size_t step = 0; step < run_.steps.size(); ++step) {
      const std::string place = "step " + std::to_string(step) + ": ";
      static_cast<void>(trainer.step(run_.steps[step], static_cast<int>(step)));
      losses.push_back(trainer.losses);
      own_.unless(counters_.unsharded_bytes == bytes_that_stay(),
                  place + "parameters are held after its end");
      own_.unless(counters_.gradient_bytes == 0, place + "gradients are held after its end");
      if (run_.own_collectives) {
        own_collective();
      }
      optimizer.step(runtime_);
      if (run_.own_collectives) {
        own_collective();
      }
      check_step(run_.steps[step], place);
      own_.unless(step == 0 || counters_.allocations == allocations,
                  place + "memory was allocated");
      allocations = counters_.allocations;
    }
    check_end(expected);
    return losses;
  }

 private:
  void pause() {
    random_ = random_ * 1664525 + 1013904223;
    if (random_ >> 30 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds{random_ >> 20 & 127});
    }
  }

  void equal(std::uint64_t found, std::uint64_t right, const std::string& what) {
    own_.unless(found == right,
                what + ": " + std::to_string(found) + ", not " + std::to_string(right));
  }

  std::int64_t bytes_that_stay() const {
    return keeps_buffers(run_.options) ? bytes_frozen(runtime_.bucket_plan(), memory_) : 0;
  }

  /// `first`, and what only `second` names: behind all that is before it there, then where `order`
  /// has it; at the end if they share nothing.
  static std::vector<BucketId> completed(std::vector<BucketId> first,
                                         const std::vector<BucketId>& second,
                                         const std::vector<BucketId>& order) {
    const auto place = [](const std::vector<BucketId>& list, BucketId bucket) {
      return std::ranges::find(list, bucket) - list.begin();
    };
    const auto shared = [&](BucketId bucket) { return std::ranges::count(first, bucket) > 0; };
    if (std::ranges::none_of(second, shared)) {
      first.insert(first.end(), second.begin(), second.end());
      return first;
    }
    std::vector<BucketId> before;  // of `second`
    for (const BucketId bucket : second) {
      if (!shared(bucket)) {
        std::ptrdiff_t at = 0;
        for (const BucketId each : before) {
          at = std::max(at, place(first, each) + 1);
        }
        while (at < std::ssize(first) &&
               std::ranges::count(second, first[static_cast<std::size_t>(at)]) == 0 &&
               place(order, first[static_cast<std::size_t>(at)]) < place(order, bucket)) {
          ++at;
        }
        first.insert(first.begin() + at, bucket);
      }
      before.push_back(bucket);
    }
    return first;
  }

  /// Slot bytes held when an update has ended.
  std::int64_t bytes_ahead() const {
    if (!keeps_buffers(run_.options)) {
      return bytes_prefetched(memory_, order_);
    }
    std::int64_t bytes = bytes_that_stay();
    for (std::size_t place = 0; place < order_.size(); ++place) {
      const BucketId bucket = order_[place];
      const bool ahead = static_cast<int>(place) < memory_.prefetch_depth;
      bytes += ahead && runtime_.bucket_plan().buckets[bucket].trainable
                   ? memory_.parameters.classes[memory_.parameters.class_of[bucket]].bytes_per_slot
                   : 0;
    }
    return bytes;
  }

  void check_step(const StepProgram& step, const std::string& place) {
    const bool agreed = keeps_buffers(run_.options);
    ProgramCounter counter(runtime_.bucket_plan(), memory_);
    std::uint64_t micro_batches = 0;
    std::vector<BucketId> recorded;  // by rank 0, for all
    for (const MicroBatchProgram& program : step) {
      ProgramCounter of_rank_0(runtime_.bucket_plan(), memory_);
      of_rank_0.micro_batch(program_of(program, 0));
      recorded = completed(recorded, of_rank_0.order_of_used(), order_);
      counter.micro_batch(program);
      micro_batches += opens_micro_batch(program) ? 1U : 0U;
    }
    if (agreed) {
      order_ = completed(recorded, order_, order_);
      reduces_ += micro_batches * static_cast<std::uint64_t>(std::ranges::count_if(
                                      runtime_.bucket_plan().buckets,
                                      [](const Bucket& bucket) { return bucket.trainable; }));
    } else {
      if (counter.facts().uses > 0) {
        order_ = counter.facts().order;
      }
      for (const std::uint64_t count : counter.facts().reduces) {
        reduces_ += count;
      }
    }
    equal(static_cast<std::uint64_t>(counters_.unsharded_bytes.load()),
          static_cast<std::uint64_t>(bytes_ahead()), place + "bytes gathered ahead");
    equal(runtime_.report().schedule.reduces, reduces_, place + "reduces");
  }

  void check_end(const ReferenceResult& expected) {
    own_.unless(counters_.unsharded_bytes_peak <= memory_.parameters.bytes,
                "more parameters unsharded than there are slots for");
    own_.unless(counters_.gradient_bytes_peak <= memory_.gradients.bytes,
                "more gradients unsharded than there are slots for");
    equal(runtime_.report().schedule.releases_ignored, 0, "ends ignored");
    for (const Parameter& parameter : run_.model.parameters()) {
      const std::string& name = parameter.full_name;
      const int expert =
          parameter.spec.group == expert_group ? world_.rank() % run_.options.mesh.ep : 0;
      own_.unless(
          runtime_.full_parameter(name) == expected.parameters.at(name_of_copy(name, expert)),
          "parameter " + name + " differs");
    }
    RankActors& actors = world_.context().actors();
    own_.unless(actors.quiesce(std::chrono::seconds{20}), "collectives are under way at the end");
    equal(actors.state().launched, actors.next_ticket() - 1, "tickets launched");
    equal(actors.state().completed, actors.state().launched, "tickets completed");
  }

  World& world_;
  const ProgramRun& run_;
  Complaints& own_;
  Runtime runtime_;
  const MemoryPlan& memory_;
  DeviceCounters& counters_;
  std::uint32_t random_;
  std::vector<BucketId> order_;  ///< predicted for the next step
  std::uint64_t reduces_ = 0;    ///< so far
};

/// How the strategy adds gradients.
inline SumOrder sum_order(const Options& options) {
  return {.replicas = options.mesh.replicate,
          .at_step_end = options.sum_replicas_at_step_end,
          .experts = options.mesh.ep,
          .once = keeps_buffers(options),
          .buffers = options.gradient_dtype.value_or(options.reduce_dtype),
          .wire = options.reduce_dtype,
          .main_gradients = options.main_gradient_dtype,
          .main_weights = options.main_weight_dtype,
          .divisor = options.gradient_divisor.value_or(0.0F),
          .expert_divisor = options.expert_gradient_divisor.value_or(0.0F)};
}

/// What is wrong, a line each; empty if all is well. `seen`: receives each rank's launches.
inline std::string complaints_of(const ProgramRun& run,
                                 std::vector<std::vector<LaunchRecord>>* seen = nullptr) {
  const ReferenceResult expected =
      Reference(run.model, run.ranks, run.optimizer, sum_order(run.options)).train(run.steps);
  const auto ranks = static_cast<std::size_t>(run.ranks);
  std::vector<Complaints> complaints(ranks + 1);  // the last of all ranks together
  std::vector<std::vector<std::vector<float>>> losses(ranks);
  std::vector<std::vector<LaunchRecord>> launches(ranks);
  Complaints& of_all = complaints.back();

  WorldOptions options;
  options.timeout = std::chrono::seconds{20};
  options.on_warning = [](const std::string&) {};
  options.on_launch = [&](int rank, const LaunchRecord& record) {
    launches[static_cast<std::size_t>(rank)].push_back(record);
  };
  try {
    World::local(run.ranks, options).run([&](World& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      losses[rank] = ProgramRank(world, run, complaints[rank]).train(expected);
    });
  } catch (const Error& error) {
    of_all.unless(false, error.what());
  }
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    of_all.unless(launches[rank] == launches[0], "ranks launch in different orders");
  }
  if (seen != nullptr) {
    *seen = launches;
  }
  for (std::size_t step = 0; step < run.steps.size() && of_all.texts.empty(); ++step) {
    float loss = 0.0F;
    for (std::size_t batch = 0; batch < run.steps[step].size(); ++batch) {
      float batch_loss = 0.0F;
      for (const auto& of_rank : losses) {
        batch_loss = batch_loss + of_rank[step][batch];
      }
      loss = loss + batch_loss;
    }
    of_all.unless(loss == expected.losses[step],
                  "step " + std::to_string(step) + ": the loss differs");
  }
  std::string all;
  for (std::size_t rank = 0; rank < complaints.size(); ++rank) {
    for (const std::string& text : complaints[rank].texts) {
      all += (rank < ranks ? "rank " + std::to_string(rank) + ": " : "") + text + "\n";
    }
  }
  return all;
}

}  // namespace troupe::test
