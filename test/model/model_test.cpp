// The tools of the suite themselves: equal seeds are equal runs, records replay, shrinking shrinks.
#include "isolation.hpp"
#include "shrink.hpp"
#include "simulation.hpp"
#include "troupe/runtime/runtime.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace troupe::test {
namespace {

/// A run in which nothing may be found wrong.
Outcome run_clean(const ModelWorld& world, const Expected& expected, std::uint64_t schedule) {
  SeededChooser chooser(schedule);
  return run_world(world, expected, Pace::any_order, chooser,
                   [](const std::string& invariant, const std::string& text, const Simulation&) {
                     FAIL(invariant << ": " << text);
                   });
}

TEST_CASE("the same seed gives the same run, another seed another one") {
  for (const std::uint64_t seed : {1U, 7U, 101U}) {
    CAPTURE(seed);
    const RangeResult once = run_range(seed, 1);
    const RangeResult again = run_range(seed, 1);
    CHECK(once.runs == 1);
    CHECK(once.hash == again.hash);
    CHECK(once.steps == again.steps);
    CHECK(run_range(seed + 1, 1).hash != once.hash);
  }
}

TEST_CASE("an empty record is a run of its own: everything goes the plainest way") {
  const RangeResult plainest = run_one({.seed = 7, .replay = true, .choices = {}});
  CHECK(plainest.runs == 1);
  CHECK_FALSE(plainest.finding.found);
  CHECK(plainest.hash == run_one({.seed = 7, .replay = true, .choices = {0, 0, 0}}).hash);
  CHECK(plainest.hash != run_range(7, 1).hash);
}

TEST_CASE(
    "what was launched is the same whatever the schedule, and another world launches other "
    "things") {
  const auto launches = [](std::uint64_t world_seed, std::uint64_t schedule_seed) {
    ModelWorld world = random_world(world_seed);
    world.fault = {};
    const Expected expected(world);
    return run_clean(world, expected, schedule_seed).launches;
  };
  for (const std::uint64_t world : {3U, 5U, 8U}) {
    CAPTURE(world);
    const std::vector<LaunchRecord> first = launches(world, 0);
    CHECK_FALSE(first.empty());
    for (std::uint64_t schedule = 1; schedule < 8; ++schedule) {
      CHECK(launches(world, schedule) == first);
    }
    CHECK(launches(world + 1, 0) != first);
  }
}

TEST_CASE("the zeros of a bucket that was not used wait for the last update of its gradients") {
  const auto run = [](const Options& options, const MicroBatchProgram& second_step) {
    ModelWorld world;
    world.model = toy_model({{5}, {5}});
    world.options = options;
    world.ranks = 2;
    world.steps = {{plain_micro_batch(2)}, {second_step}};
    world.worker_stream = true;
    world.worker_update = true;
    world.update_time = 30'000;
    world.weights.assign(2, {64, 64, 64, 64, 64, 1});  // hosts are quick, updates take long
    const Expected expected(world);
    for (std::uint64_t schedule = 0; schedule < 10; ++schedule) {
      CAPTURE(schedule);
      const Outcome outcome = run_clean(world, expected, schedule);
      CHECK(std::ranges::count(outcome.launches, Collective::reduce_scatter, &LaunchRecord::op) ==
            4);
    }
  };
  SUBCASE("where ranks agree on an order") {
    run({.strategy = Strategy::sharded_optimizer, .bucket_bytes = 20},
        {{Op::forward, 0}, {Op::backward, 0}});
  }
  SUBCASE("where ranks say that they skip the unit") {
    MicroBatchProgram program = plain_micro_batch(2);
    program[1].absent_on = 0b11;  // unit 1 on both ranks
    program[2].absent_on = 0b11;
    run({}, program);
  }
}

TEST_CASE("an update of weights that lie in full buffers waits for the last use on a stream") {
  for (const bool on_a_stream : {false, true}) {
    CAPTURE(on_a_stream);
    ModelWorld world;
    world.model = toy_model({{5}});
    world.options.strategy = Strategy::sharded_optimizer;
    world.steps = {{{{Op::forward, 0}}}};  // no backward: no reduce waits for it
    world.worker_stream = true;
    world.worker_update = on_a_stream;
    world.compute_time = 1000;
    world.weights.assign(1, {64, 64, 64, 64, 64, 1});
    const Expected expected(world);
    for (std::uint64_t schedule = 0; schedule < 10; ++schedule) {
      CAPTURE(schedule);
      const Outcome outcome = run_clean(world, expected, schedule);
      CHECK(outcome.launches.size() > 2);
    }
  }
}

TEST_CASE("S08: no access overtakes another in 20 steps with random delays") {
  ModelWorld world;
  world.model = toy_model({{1024}, {1024}, {1024}, {1024}});
  world.options = {.slots = 2, .gradient_slots = 2, .prefetch_depth = 1};
  world.ranks = 4;
  world.steps.assign(20, {plain_micro_batch(4)});
  world.worker_stream = true;
  world.worker_update = true;
  world.compute_time = 20;
  world.update_time = 20;
  world.collective_time = 20;
  world.weights.assign(4, {16, 16, 16, 16, 16, 1});
  const Expected expected(world);
  for (std::uint64_t schedule = 0; schedule < 3; ++schedule) {
    CAPTURE(schedule);
    const Outcome outcome = run_clean(world, expected, schedule);
    CHECK(std::ranges::count(outcome.launches, Collective::reduce_scatter, &LaunchRecord::op) ==
          80);
  }
}

TEST_CASE("S08: a read on another stream than the use was told of is reported with both users") {
  for (const bool stray : {false, true}) {
    CAPTURE(stray);
    ReplayChooser plainest({});
    std::vector<std::string> texts;
    Simulation simulation({.ranks = 2}, plainest, [&](const std::string&, const std::string& text) {
      texts.push_back(text);
    });
    simulation.run([&](World& world) {
      SimulatedDevice& device = simulation.device(world.rank());
      SimulatedStream& told = device.create_simulated_stream("told");
      SimulatedStream& other = device.create_simulated_stream("other");
      Runtime runtime(world, toy_model({{8}, {8}}), {.slots = 1, .prefetch_depth = 0});
      runtime.initialize([](ParameterView) {});
      const auto micro_batch = runtime.micro_batch();
      for (const UnitId unit : {0U, 1U}) {
        const Use use = runtime.forward(unit, &told);
        const TensorView view = use["p0"];
        (stray ? other : told)
            .run("read of unit", unit, std::chrono::milliseconds{1},
                 {{view.data, view.numel * 4, false}}, [] {});
      }
    });
    CHECK(texts.empty() == !stray);
    if (stray) {
      CHECK(texts.front() == "read of unit 0 on rank 0 reads what all_gather 2 on rank 0 writes");
    }
  }
}

TEST_CASE("shrinking keeps what is needed and makes the rest zero") {
  Choices failing(1000);
  for (std::size_t i = 0; i < failing.size(); ++i) {
    failing[i] = static_cast<std::uint16_t>(1 + i % 5);
  }
  failing[120] = 77;
  failing[640] = 78;
  int attempts = 0;
  const Choices shorter = shrink(
      failing,
      [&](const Choices& choices) {
        ++attempts;
        return choices.size() > 640 && choices[120] == 77 && choices[640] == 78;
      },
      400);
  CHECK(attempts <= 400);
  REQUIRE(shorter.size() == 641);
  CHECK(std::ranges::count(shorter, 0) == 639);
  CHECK(to_text(shorter) == "0*120,77,0*519,78");
}

TEST_CASE("shrinking stops after the attempts it was given, with a list that still fails") {
  const Choices failing(64, 3);
  int attempts = 0;
  const Choices shorter = shrink(
      failing,
      [&](const Choices& choices) {
        ++attempts;
        return choices.size() > 40;
      },
      5);
  CHECK(attempts <= 5);
  CHECK(shorter.size() > 40);
}

TEST_CASE("lists of choices are read as they were written") {
  for (const Choices& choices : {Choices{}, Choices{0}, Choices{3, 3, 3, 1, 65535, 0, 0}}) {
    CHECK(from_text(to_text(choices)) == choices);
  }
  CHECK(to_text({3, 3, 3, 1, 0, 0}) == "3*3,1,0*2");
  for (const char* const wrong : {"x", "1,", ",1", "1*", "1*x", "1,,2", "70000", "1 2", "-1"}) {
    CAPTURE(wrong);
    CHECK_FALSE(from_text(wrong).has_value());
  }
}

}  // namespace
}  // namespace troupe::test
