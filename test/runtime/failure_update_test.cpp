#include "troupe/comm/host_stream.hpp"
#include "troupe/runtime/runtime.hpp"
#include "troupe/test/support/toy_model.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace troupe::test {
namespace {

const WorldOptions& quiet() {
  static const WorldOptions options{.timeout = std::chrono::seconds{20},
                                    .on_failure = [](const std::string&) {},
                                    .on_warning = [](const std::string&) {}};
  return options;
}

/// What a world ends with in which rank 1's update fails on its stream, and then comes `next`.
template <class Next>
std::string error_after_failed_update(int ranks, Next next) {
  try {
    World::local(ranks, quiet()).run([&](World& world) {
      HostStream& updates = world.host_device().create_host_stream("updates");
      Runtime runtime(world, toy_model({{64}, {64}}), {.prefetch_depth = 0});
      runtime.initialize([](ParameterView) {});
      {
        const Update update = runtime.update(&updates);
        updates.run([rank = world.rank()] {
          if (rank == 1) {
            throw std::runtime_error("planted");
          }
        });
      }
      next(world, runtime);
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Found by the schedule 14130:0*6,1,3,2,3,5,0,3,1,3,0*22 of the model: an update that had failed on
// its stream was taken for finished by the next one, and training went on with old parameters.
TEST_CASE("an update that failed on its stream is not taken for finished") {
  const std::string right =
      "rank 1: the last update of bucket 0 'u0' (p0) on stream 'updates' failed: "
      "stream 'updates': planted";
  for (const int ranks : {2, 3, 4, 7}) {
    CAPTURE(ranks);
    // The next update, on the trainer's thread.
    CHECK(error_after_failed_update(ranks, [](World& world, Runtime& runtime) {
            {
              const Update update = runtime.update();
            }
            world.barrier();
          }) == right);
    // The end of a step that did not use the bucket.
    CHECK(error_after_failed_update(ranks, [](World& world, Runtime& runtime) {
            {
              const auto micro_batch = runtime.micro_batch();
            }
            runtime.finish_gradients();
            world.barrier();
          }) == right);
  }
}

TEST_CASE("a gather, an export and the end of the runtime hear of a failed update, too") {
  const std::string planted = "stream 'updates': planted";
  CHECK(error_after_failed_update(2, [](World&, Runtime& runtime) {
          const auto micro_batch = runtime.micro_batch();
          runtime.forward(0).end();
        }).find(planted) != std::string::npos);
  CHECK(error_after_failed_update(2, [](World&, Runtime& runtime) {
          static_cast<void>(runtime.full_parameter("u0.p0"));
        }).find(planted) != std::string::npos);
  CHECK(error_after_failed_update(2, [](World&, Runtime&) {}).find(planted) != std::string::npos);
}

TEST_CASE("who waits for an update on a stream hears of a peer's failure meanwhile") {
  for (const bool end_of_step : {false, true}) {
    CAPTURE(end_of_step);
    std::atomic<bool> heard = false;
    std::atomic<bool> heard_in_time = false;
    const auto body = [&](World& world) {
      HostStream& updates = world.host_device().create_host_stream("updates");
      Runtime runtime(world, toy_model({{64}, {64}}), {.prefetch_depth = 0});
      runtime.initialize([](ParameterView) {});
      if (world.rank() == 0) {
        const Update update = runtime.update(&updates);
        updates.run([&] {
          for (int look = 0; look < 5000 && !heard; ++look) {
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
          }
          heard_in_time = heard.load();
        });
      }
      if (world.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds{100});  // the other one waits by now
        throw std::runtime_error("planted");
      }
      try {
        if (end_of_step) {
          {
            const auto micro_batch = runtime.micro_batch();
          }
          runtime.finish_gradients();
        } else {
          static_cast<void>(runtime.update());
        }
      } catch (const Error&) {
        heard = true;
        throw;
      }
    };
    try {
      World::local(2, quiet()).run(body);
    } catch (const Error& error) {
      CHECK(std::string(error.what()) == "rank 1 failed: planted");
    }
    CHECK(heard_in_time);
  }
}

}  // namespace
}  // namespace troupe::test
