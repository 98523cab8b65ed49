/// Runs programs of the toy on a world of threads and on the reference, and compares everything:
/// parameters and losses bit for bit, launches between the ranks, and what is left over.
#pragma once

#include "program_facts.hpp"
#include "toy_trainer.hpp"
#include "troupe/runtime/rank_context.hpp"

#include <cstdint>
#include <functional>
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
  std::uint32_t jitter = 0;  ///< other than 0: hosts pause between events, as this seed has it
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

/// Empty if all is well.
inline std::vector<std::string> complaints_of(const ProgramRun& run) {
  const ReferenceResult expected = Reference(run.model, run.ranks, run.optimizer).train(run.steps);
  const auto ranks = static_cast<std::size_t>(run.ranks);
  std::vector<Complaints> complaints(ranks + 1);  // the last of all ranks together
  std::vector<std::vector<std::vector<float>>> losses(ranks);
  std::vector<std::vector<LaunchRecord>> launches(ranks);

  const auto body = [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    Complaints& own = complaints[rank];
    Runtime runtime(world, run.model, run.options);
    const MemoryPlan& memory = runtime.memory_plan();
    DeviceCounters& counters = world.device().counters();
    ToyTrainer trainer{runtime, world.rank()};
    if (run.worker_stream) {
      trainer.stream = &world.device().create_host_stream("compute");
    }
    std::uint32_t random = run.jitter * 7919 + static_cast<std::uint32_t>(rank);
    if (run.jitter != 0) {
      trainer.pause = [&random] {
        random = random * 1664525 + 1013904223;
        if (random >> 30 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds{random >> 20 & 127});
        }
      };
    }
    ToyOptimizer optimizer{run.optimizer};
    trainer.initialize();
    std::uint64_t reduces = 0;
    std::int64_t allocations = 0;
    std::vector<BucketId> order;  // predicted for the next step: at first that of registration
    for (const std::vector<BucketId>& buckets : runtime.bucket_plan().unit_buckets) {
      std::ranges::copy_if(buckets, std::back_inserter(order),
                           [&](BucketId bucket) { return std::ranges::count(order, bucket) == 0; });
    }
    for (std::size_t step = 0; step < run.steps.size(); ++step) {
      const std::string place = "step " + std::to_string(step) + ": ";
      ProgramCounter counter(runtime.bucket_plan(), memory);
      for (const MicroBatchProgram& program : run.steps[step]) {
        counter.micro_batch(program);
      }
      if (counter.facts().uses > 0) {
        order = counter.facts().order;
      }
      static_cast<void>(trainer.step(run.steps[step], static_cast<int>(step)));
      losses[rank].push_back(trainer.losses);
      own.unless(counters.unsharded_bytes == 0, place + "parameters are held after the step's end");
      own.unless(counters.gradient_bytes == 0, place + "gradients are held after the step's end");
      optimizer.step(runtime);
      own.unless(counters.unsharded_bytes == bytes_prefetched(memory, order),
                 place + std::to_string(counters.unsharded_bytes) + " bytes gathered ahead, not " +
                     std::to_string(bytes_prefetched(memory, order)));
      for (const std::uint64_t count : counter.facts().reduces) {
        reduces += count;
      }
      own.unless(runtime.report().schedule.reduces == reduces,
                 place + std::to_string(runtime.report().schedule.reduces) + " reduces, not " +
                     std::to_string(reduces));
      own.unless(step == 0 || counters.allocations == allocations,
                 place + "memory was allocated in a step");
      allocations = counters.allocations;
    }
    own.unless(counters.unsharded_bytes_peak <= memory.parameters.bytes,
               "more parameters unsharded than there are slots for");
    own.unless(counters.gradient_bytes_peak <= memory.gradients.bytes,
               "more gradients unsharded than there are slots for");
    own.unless(runtime.report().schedule.releases_ignored == 0, "an end was ignored");
    for (const auto& [name, values] : expected.parameters) {
      own.unless(runtime.full_parameter(name) == values, "parameter " + name + " differs");
    }
    RankActors& actors = world.context().actors();
    own.unless(actors.quiesce(std::chrono::seconds{20}), "collectives are under way at the end");
    own.unless(actors.state().launched == actors.next_ticket() - 1, "a ticket was not launched");
    own.unless(actors.state().completed == actors.state().launched, "a ticket is still open");
  };

  Complaints& of_all = complaints.back();
  WorldOptions world_options;
  world_options.timeout = std::chrono::seconds{20};
  world_options.on_warning = [](const std::string&) {};
  world_options.on_launch = [&](int rank, const LaunchRecord& record) {
    launches[static_cast<std::size_t>(rank)].push_back(record);
  };
  try {
    World::local(run.ranks, world_options).run(body);
  } catch (const Error& error) {
    of_all.unless(false, error.what());
  }
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    of_all.unless(launches[rank] == launches[0], "ranks launch in different orders");
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
  std::vector<std::string> all;
  for (std::size_t rank = 0; rank < complaints.size(); ++rank) {
    for (const std::string& text : complaints[rank].texts) {
      all.push_back(rank < ranks ? "rank " + std::to_string(rank) + ": " + text : text);
    }
  }
  return all;
}

}  // namespace troupe::test
