/// Where full buffers stay, fp32 main weights lie in them: an update may not overtake computation
/// that still reads them on its stream.
#include "troupe/test/support/toy_trainer.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

namespace troupe::test {
namespace {

/// An eval pass whose computation is slow, on a stream; then an update at once. What the eval has
/// read.
std::vector<float> read_by_eval(Strategy strategy, bool update_on_stream) {
  std::vector<float> read;
  World::local(1).run([&](World& world) {
    Runtime runtime(world, toy_model({{16}}), {.strategy = strategy});
    HostStream& compute = world.host_device().create_host_stream("compute");
    HostStream& updates = world.host_device().create_host_stream("updates");
    runtime.initialize([](ParameterView view) { std::ranges::fill(view.data, 1.0F); });
    {
      const auto eval = runtime.eval();
      const auto use = runtime.forward(0, &compute);
      compute.run([&read, view = use["p0"]] {
        std::this_thread::sleep_for(std::chrono::milliseconds{30});
        read = widened(view);
      });
    }
    Update update = runtime.update(update_on_stream ? &updates : nullptr);
    const std::span<float> weights = update.shard(0).weights;
    if (update_on_stream) {
      updates.run([weights] { std::ranges::fill(weights, 2.0F); });
    } else {
      std::ranges::fill(weights, 2.0F);
    }
  });
  return read;
}

TEST_CASE("an update does not change parameters that a stream still reads") {
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    for (const bool update_on_stream : {false, true}) {
      CAPTURE(std::string(row_of(strategy).name));
      CAPTURE(update_on_stream);
      CHECK(read_by_eval(strategy, update_on_stream) == std::vector<float>(16, 1.0F));
    }
  }
}

}  // namespace
}  // namespace troupe::test
