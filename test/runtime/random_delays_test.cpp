/// Time decides nothing: under random delays everywhere, the launches are the same.
#include "troupe/actors/rank_state.hpp"
#include "troupe/test/support/random.hpp"
#include "troupe/test/support/toy_trainer.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace troupe::test {
namespace {

/// Sleeps now and then; each thread has its own.
class Delays {
 public:
  explicit Delays(std::uint64_t seed) : random_(seed) {}
  void maybe() {
    if (random_.below(4) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_.below(120)));
    } else if (random_.below(4) == 0) {
      std::this_thread::yield();
    }
  }

 private:
  Random random_;
};

/// A step with everything in it: nesting, a unit used twice, eval in the middle, recomputation.
StepProgram busy_step() {
  return {plain_micro_batch(5),
          {{Op::begin_forward, 2},
           {Op::forward, 0},
           {Op::forward, 1},
           {Op::end, 0},
           {Op::forward, 1},
           {Op::begin_eval, 0},
           {Op::forward, 4},
           {Op::forward, 0},
           {Op::end_eval, 0},
           {Op::forward, 4},
           {Op::backward, 4},
           {Op::forward, 2},
           {Op::backward, 2},
           {Op::backward, 1},
           {Op::backward, 1},
           {Op::backward, 0}}};
}

struct Run {
  std::vector<std::vector<LaunchRecord>> launches;  // per rank
  std::map<std::string, std::vector<float>> parameters;
};

Run run(int ranks, std::uint64_t seed, bool worker_stream) {
  Run result;
  result.launches.resize(static_cast<std::size_t>(ranks));
  std::vector<Delays> comm_delays;
  for (int rank = 0; rank < ranks; ++rank) {
    comm_delays.emplace_back(seed * 1000 + static_cast<std::uint64_t>(rank));
  }
  WorldOptions world_options{.timeout = std::chrono::seconds{60}};
  world_options.on_launch = [&](int rank,
                                const LaunchRecord& record) {  // on the rank's comm thread
    result.launches[static_cast<std::size_t>(rank)].push_back(record);
    comm_delays[static_cast<std::size_t>(rank)].maybe();
  };
  World::local(ranks, world_options).run([&](World& world) {
    const auto rank = static_cast<std::uint64_t>(world.rank());
    auto trainer_delays = std::make_shared<Delays>(seed * 77 + rank);
    auto stream_random = std::make_shared<Random>(seed * 991 + rank);
    std::vector<HostStream*> comm_streams = world.host_device().streams();
    HostStream* stream =
        worker_stream ? &world.host_device().create_host_stream("compute") : nullptr;
    Runtime runtime(world, toy_model({{37, 5}, {64}, {1, 29, 3}, {101}, {2, 0, 61}}),
                    {.slots = 3, .prefetch_depth = 2});
    ToyTrainer trainer{runtime, world.rank(), stream};
    trainer.pause = [&, trainer_delays, stream_random] {
      trainer_delays->maybe();
      // Something slow in front of what comes next on the streams of gathers and reduces.
      HostStream* slowed = comm_streams[stream_random->below(comm_streams.size())];
      const auto pause = std::chrono::microseconds(stream_random->below(150));
      slowed->run([pause] { std::this_thread::sleep_for(pause); });
    };
    ToyOptimizer optimizer{OptimizerKind::adamw};
    trainer.initialize();
    for (int step = 0; step < 2; ++step) {
      static_cast<void>(trainer.step(busy_step(), step));
      optimizer.step(runtime);
    }
    for (const Parameter& parameter : runtime.model().parameters()) {
      std::vector<float> values = runtime.full_parameter(parameter.full_name);
      if (world.rank() == 0) {
        result.parameters[parameter.full_name] = std::move(values);
      }
    }
  });
  return result;
}

TEST_CASE(
    "1,000 runs with random delays in trainers, comm threads and streams launch alike on every "
    "rank") {
  const char* limit = std::getenv("TROUPE_DELAY_RUNS");
  const std::uint64_t runs =
      limit != nullptr ? static_cast<std::uint64_t>(std::atoll(limit)) : 1000;
  const Model model = toy_model({{37, 5}, {64}, {1, 29, 3}, {101}, {2, 0, 61}});
  std::map<int, std::vector<LaunchRecord>> first;
  std::map<int, ReferenceResult> expected;
  for (const int ranks : {2, 3, 4}) {
    expected[ranks] = Reference(model, ranks, OptimizerKind::adamw)
                          .train(std::vector<StepProgram>(2, busy_step()));
  }
  for (std::uint64_t seed = 0; seed < runs; ++seed) {
    CAPTURE(seed);
    const int ranks = 2 + static_cast<int>(seed % 3);
    const Run outcome = run(ranks, seed, seed % 2 == 1);
    if (first[ranks].empty()) {
      first[ranks] = outcome.launches.front();
      CHECK(first[ranks].size() > 40);
    }
    for (const auto& launches : outcome.launches) {
      CHECK(launches == first[ranks]);
    }
    CHECK(outcome.parameters == expected[ranks].parameters);
  }
}

}  // namespace
}  // namespace troupe::test
