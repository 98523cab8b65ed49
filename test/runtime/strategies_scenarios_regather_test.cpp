/// Scenarios about parameters that are gathered again within a smaller group of ranks, which have
/// kept what was gathered first.
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <thread>

namespace troupe::test {
namespace {

constexpr std::int64_t layer_bytes = 4096;  // of 1024 fp32 elements

TEST_CASE("S12: weights gathered again within a smaller group are those of the forward") {
  for (const bool overlap : {true, false}) {
    for (const bool worker : {false, true}) {
      CAPTURE(overlap);
      CAPTURE(worker);
      Options options = d4_options();
      options.regather_group_size = 2;
      options = overlap ? options : without_overlap(options);
      LaunchLog launches(4);
      CHECK(on_ranks(
                4,
                [&](World& world, Findings& findings) {
                  D4Trainer trainer(world, findings, d4_model(), options);
                  trainer.stream =
                      worker ? &world.host_device().create_host_stream("compute") : nullptr;
                  HostStream& gathers = stream_of(world, "gather");
                  // What is kept is taken on the gathers' stream: late, on some ranks later.
                  const auto hold_up = [&] {
                    const std::chrono::microseconds delay{300 * (1 + world.rank())};
                    gathers.run([delay] { std::this_thread::sleep_for(delay); });
                  };
                  const auto step = [&] {
                    {
                      const auto micro_batch = trainer.runtime.micro_batch();
                      for (UnitId layer = 0; layer < 4; ++layer) {
                        hold_up();
                        trainer.forward(layer);
                      }
                      for (UnitId layer = 4; layer-- > 0;) {
                        hold_up();
                        trainer.backward(layer);
                      }
                    }
                    trainer.runtime.finish_gradients();
                    trainer.optimize();
                  };
                  const std::uint64_t without = trainer.counters().regathers;
                  findings.equal(without, 0U, "regathers before the first step");
                  step();
                  // The backward finds L3 and L2 in the two slots.
                  findings.equal(trainer.counters().regathers, 2U, "regathers of a step");
                  step();
                  trainer.wait_for_stream();
                  // Loading is another update: what was kept of the old weights is not read again.
                  for (ParameterId id = 0; id < 4; ++id) {
                    std::vector<float> loaded = trainer.oracle.weights(id);
                    for (float& p : loaded) {
                      p = p + 1000.0F;
                    }
                    trainer.oracle.set(id, loaded);
                  }
                  trainer.runtime.initialize([&](ParameterView view) {
                    std::ranges::copy(
                        trainer.oracle.weights(trainer.runtime.model().parameter(view.name)),
                        view.data.begin());
                  });
                  step();
                  findings.equal(trainer.counters().regathers, 6U, "regathers of three steps");
                  findings.equal(trainer.runtime.report().memory.kept_parameters,
                                 4 * layer_bytes / 2, "bytes kept");
                  trainer.wait_for_stream();
                  trainer.expect_oracle();  // of three steps: what a run without regathers gives
                },
                &launches) == "");
      CHECK(launches.same_on_all_ranks());
      // The first gather of a version is of the whole group, each later one of two ranks.
      std::size_t regathers = 0;
      for (const LaunchRecord& launch : launches.of_rank[0]) {
        if (launch.op == Collective::all_gather && launch.bucket != no_bucket &&
            launch.label != "for an export") {
          const bool again = launch.axis == GroupAxis::regather;
          regathers += again ? 1U : 0U;
          CHECK(launch.axis == (again ? GroupAxis::regather : GroupAxis::world));
          CHECK(launch.numel == (again ? 1024 / 2 : 1024 / 4));
        }
      }
      CHECK(regathers == 6);
    }
  }
}

}  // namespace
}  // namespace troupe::test
