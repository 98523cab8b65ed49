/// A thousand steps given up leave nothing behind.
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/giving_up.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <malloc.h>
#include <thread>

namespace troupe::test {
namespace {

/// Bytes of the heap that are in use, over all arenas.
std::size_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

struct Held {
  std::ptrdiff_t threads = 0;
  std::ptrdiff_t files = 0;
  std::size_t heap = 0;
  std::size_t streams = 0;
  std::int64_t allocations = 0;
  std::int64_t unsharded = 0;
  std::int64_t gradients = 0;
};

Held held_by(World& world) {
  const DeviceCounters& counters = world.device().counters();
  return {thread_count(),
          open_file_count(),
          heap_bytes(),
          world.host_device().streams().size(),
          counters.allocations.load(),
          counters.unsharded_bytes.load(),
          counters.gradient_bytes.load()};
}

TEST_CASE("after 1000 steps given up, memory, threads, streams and files are what they were") {
  constexpr int rounds = 1000;
  const Model model = d4_model(4, 64);
  Findings findings;
  Held first;
  Held last;
  std::atomic<int> dumps{0};  // counted, not kept: they would be what is left
  const WorldOptions options{.timeout = failing_world_timeout,
                             .on_failure = [&](const std::string&) { ++dumps; },
                             .on_warning = [](const std::string&) {}};
  World::local(2, options).run([&](World& world) {
    D4Trainer trainer(world, findings, model, d4_options());
    trainer.stream = &world.host_device().create_host_stream("compute");
    for (int round = 0; round < rounds; ++round) {
      try {
        // The first ones make what is made once. In here, since a rank may give up while the other
        // one is still on its way out of the barrier.
        if (round == 100 || round == rounds - 1) {
          world.barrier();
          if (world.rank() == 0) {
            std::this_thread::sleep_for(std::chrono::milliseconds{50});
            (round == 100 ? first : last) = held_by(world);
          }
          world.barrier();
        }
        const auto micro_batch = trainer.runtime.micro_batch();
        for (UnitId unit = 0; unit < 4; ++unit) {
          trainer.forward(unit);
        }
        trainer.backward(3);
        if (world.rank() == round % 2) {
          throw GivesUp();
        }
        world.barrier();
      } catch (const std::exception& exception) {
        give_up(trainer, exception);
      }
    }
    trainer.step();
    trainer.expect_oracle();
  });
  CHECK(findings.text() == "");
  CHECK(dumps == 2 * rounds);
  CHECK(last.threads == first.threads);
  CHECK(last.files == first.files);
  CHECK(last.streams == first.streams);
  CHECK(last.allocations == first.allocations);
  CHECK(last.unsharded == first.unsharded);
  CHECK(last.gradients == first.gradients);
  constexpr std::size_t pages = 16 * 4096;  // what allocators keep for a thread varies
  CHECK(last.heap < first.heap + pages);
}

}  // namespace
}  // namespace troupe::test
