#include "support/held_memory.hpp"
#include "support/local_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

const Failure boom{.code = ErrorCode::peer_failed, .text = "rank 1 failed: boom", .rank = 1};

/// Two ranks in a broadcast. Rank 0, the root, is stepped by the test; rank 1 has a thread, which
/// is held up while it reads rank 0's input.
class HeldBroadcast {
 public:
  HeldBroadcast()
      : held(20000),
        world(2, patience),
        root(&root_device.create_host_stream("root")),
        reader(&reader_device.create_host_stream("reader")),
        copied(held.bytes() / sizeof(float), -1.0F) {
    const std::vector<int> both{0, 1};
    CollectiveCall call{.op = Collective::broadcast,
                        .ticket = 1,
                        .bucket = 2,
                        .label = "weights",
                        .input = held.data(),
                        .output = held.data(),
                        .numel = static_cast<std::int64_t>(copied.size())};
    REQUIRE(world.communicator(0, both, 0)->launch(call, *root).ok());
    call.input = nullptr;
    call.output = copied.data();
    REQUIRE(world.communicator(1, both, 0)->launch(call, *reader).ok());
    root->step();
    wait_until([this] { return held.entered(); });
  }

  template <class Ready>
  static void wait_until(Ready ready) {
    const TimePoint limit = Clock::steady().now() + patience;
    while (!ready() && Clock::steady().now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    REQUIRE(ready());
  }

  HeldMemory held;
  LocalWorld world;
  HostDevice root_device{StreamWorkers::manual};
  HostDevice reader_device;
  HostStream* root;
  HostStream* reader;
  std::vector<float> copied;
};

TEST_CASE("a collective is not done on a rank while a peer reads its buffer") {
  HeldBroadcast broadcast;
  const Event done = broadcast.root->record();
  for (int look = 0; look < 10; ++look) {
    CHECK_FALSE(broadcast.root->step());
  }
  broadcast.held.let_go();
  CHECK_FALSE(settle(*broadcast.reader).failure);
  CHECK(broadcast.root->step());
  CHECK(done.done());
}

TEST_CASE("an aborted collective does not end on a rank while a peer reads its buffer") {
  HeldBroadcast broadcast;
  broadcast.world.abort(boom);
  for (int look = 0; look < 10; ++look) {
    CHECK_FALSE(broadcast.root->step());
    CHECK_FALSE(broadcast.root->failure().has_value());
  }
  broadcast.held.let_go();
  // All had arrived and the reader was in, so it completes for both, or fails for both.
  const auto report = settle(*broadcast.reader);
  while (broadcast.root->step()) {
  }
  CHECK(report.failure == broadcast.root->failure());
  CHECK(broadcast.root->idle());
}

TEST_CASE("a stream that is stopped does not let go of its buffer while a peer reads it") {
  HeldBroadcast broadcast;
  std::atomic<bool> stopped{false};
  std::thread stopper([&] {
    broadcast.root->stop();
    stopped = true;
    // The owner may reuse the buffer now; a reader inside would copy this.
    std::memset(broadcast.held.data(), 0xff, 4096);
  });
  // The drop is reported before the wait for readers begins.
  HeldBroadcast::wait_until(
      [&broadcast] { return broadcast.world.first_failure().get().has_value(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time for a fault to show
  CHECK_FALSE(stopped);
  broadcast.held.let_go();
  stopper.join();
  settle(*broadcast.reader);
  CHECK(std::ranges::all_of(broadcast.copied, [](float value) { return value == 0.0F; }));
  const Failure failure = broadcast.world.first_failure().get().value_or(Failure{});
  CHECK(failure.rank == 0);
  CHECK(failure.text ==
        "rank 0 dropped broadcast of bucket 2 'weights' (ticket 1): stream 'root' was stopped");
}

TEST_CASE("no reader meets what an owner writes after an abort at a random moment") {
  constexpr int size = 3;
  constexpr std::size_t numel = 1U << 18U;  // 1 MiB
  Random random(7);
  // First, how long it takes undisturbed.
  Duration whole{};
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    std::vector<std::vector<float>> parts(size, std::vector<float>(numel, 1.0F));
    std::vector<std::vector<float>> gathered(size, std::vector<float>(numel * size, 0.0F));
    LocalRanks ranks(size, StreamWorkers::threads);
    const TimePoint begin = Clock::steady().now();
    for (int rank = 0; rank < size; ++rank) {
      auto& part = parts[static_cast<std::size_t>(rank)];
      REQUIRE(ranks.communicator(rank)
                  .launch({.op = Collective::all_gather,
                           .ticket = 1,
                           .input = part.data(),
                           .output = gathered[static_cast<std::size_t>(rank)].data(),
                           .numel = static_cast<std::int64_t>(numel)},
                          ranks.stream(rank))
                  .ok());
      // Done or failed, the owner may write its buffer again.
      ranks.stream(rank).notify(
          [&part](const StreamReport&) { std::fill(part.begin(), part.end(), -1.0F); });
    }
    if (round > 0) {
      const auto ticks = static_cast<std::uint64_t>(std::max<Duration::rep>(whole.count(), 1));
      const TimePoint moment = begin + Duration(static_cast<Duration::rep>(random.below(ticks)));
      while (Clock::steady().now() < moment) {
        std::this_thread::yield();
      }
      ranks.world.abort(boom);
    }
    for (int rank = 0; rank < size; ++rank) {
      settle(ranks.stream(rank));
    }
    whole = round == 0 ? Clock::steady().now() - begin : whole;
    const auto failures = ranks.failures();
    for (int rank = 0; rank < size; ++rank) {
      REQUIRE(failures[static_cast<std::size_t>(rank)] == failures[0]);
      const auto& result = gathered[static_cast<std::size_t>(rank)];
      REQUIRE(std::ranges::count(result, -1.0F) == 0);
      if (!failures[0]) {
        REQUIRE(std::ranges::count(result, 1.0F) == static_cast<std::ptrdiff_t>(result.size()));
      }
    }
  }
}

TEST_CASE("an abort reaches every group and channel, and ends what comes later") {
  LocalRanks ranks(3, StreamWorkers::threads, patience, Clock::steady(), 2);
  auto pair = ranks.world.communicator(1, {1, 2}, 0);
  HostStream& pair_stream = ranks.device(1).create_host_stream("pair");
  const CollectiveCall barrier{.op = Collective::barrier, .ticket = 1};
  REQUIRE(ranks.communicator(0, 0).launch(barrier, ranks.stream(0, 0)).ok());
  REQUIRE(ranks.communicator(2, 1).launch(barrier, ranks.stream(2, 1)).ok());
  REQUIRE(pair->launch(barrier, pair_stream).ok());
  ranks.world.abort(boom);
  ranks.world.abort({.code = ErrorCode::internal, .text = "later"});
  CHECK(settle(ranks.stream(0, 0)).failure == boom);
  CHECK(settle(ranks.stream(2, 1)).failure == boom);
  CHECK(settle(pair_stream).failure == boom);
  CHECK(ranks.world.first_failure().get() == boom);

  const auto late = ranks.communicator(1).launch(barrier, ranks.stream(1));
  REQUIRE_FALSE(late.ok());
  CHECK(late.failure() == boom);
  auto new_group = ranks.world.communicator(0, {0, 1}, 5);
  CHECK(new_group->launch(barrier, ranks.stream(1)).failure() == boom);
}

TEST_CASE("a collective that all have left is done, also when an abort comes before a rank looks") {
  LocalRanks ranks(2, StreamWorkers::manual);
  const CollectiveCall barrier{.op = Collective::barrier, .ticket = 1};
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(ranks.communicator(rank).launch(barrier, ranks.stream(rank)).ok());
  }
  CHECK_FALSE(ranks.stream(0).step());  // arrived
  CHECK_FALSE(ranks.stream(1).step());  // arrived, left; waits for rank 0
  CHECK(ranks.stream(0).step());        // left: all have
  ranks.world.abort(boom);
  CHECK(ranks.stream(1).step());
  CHECK_FALSE(ranks.stream(1).failure());
}

TEST_CASE("a stream that is stopped harms no collective that all have left") {
  LocalRanks ranks(2, StreamWorkers::manual);
  const CollectiveCall barrier{.op = Collective::barrier, .ticket = 1};
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(ranks.communicator(rank).launch(barrier, ranks.stream(rank)).ok());
  }
  CHECK_FALSE(ranks.stream(0).step());
  CHECK_FALSE(ranks.stream(1).step());  // left, and does not look again
  CHECK(ranks.stream(0).step());
  ranks.stream(1).stop();
  CHECK_FALSE(ranks.world.first_failure().get());
}

TEST_CASE("no payload of calls that disagree moves, however often the streams are tried") {
  for (int round = 0; round < 100; ++round) {
    CAPTURE(round);
    constexpr int size = 3;
    LocalRanks ranks(size, StreamWorkers::threads);
    std::atomic<bool> over{false};
    std::thread poker([&] {
      while (!over) {
        for (HostStream* stream : ranks.streams()) {
          static_cast<Wakeable&>(*stream).notify();
        }
      }
    });
    std::vector<float> values{1, 2, 4};
    for (int rank = 0; rank < size; ++rank) {
      float& value = values[static_cast<std::size_t>(rank)];
      REQUIRE(ranks.communicator(rank)
                  .launch({.op = Collective::all_reduce,
                           .ticket = rank == round % size ? 6U : 5U,
                           .input = &value,
                           .output = &value,
                           .numel = 1},
                          ranks.stream(rank))
                  .ok());
    }
    for (HostStream* stream : ranks.streams()) {
      CHECK(settle(*stream).failure.value_or(Failure{}).code == ErrorCode::mismatch);
    }
    over = true;
    poker.join();
    REQUIRE(values == std::vector<float>{1, 2, 4});
  }
}

TEST_CASE("a stream's own failure reaches the peers with its text") {
  LocalRanks ranks(3, StreamWorkers::threads);
  ranks.stream(1).run([] { throw std::runtime_error("boom at layer 2"); });
  const CollectiveCall barrier{.op = Collective::barrier, .ticket = 6};
  for (int rank = 0; rank < 3; ++rank) {
    const auto launched = ranks.communicator(rank).launch(barrier, ranks.stream(rank));
    CHECK((launched.ok() || launched.failure().rank == 1));
  }
  const auto expected = "rank 1 dropped barrier (ticket 6): stream 'channel 0': boom at layer 2";
  settle(ranks.stream(1));
  const Failure failure = ranks.world.first_failure().get().value_or(Failure{});
  CHECK(failure.text == expected);
  CHECK(failure.rank == 1);
  for (const int rank : {0, 2}) {
    const auto seen = settle(ranks.stream(rank)).failure;
    CHECK((!seen || seen == failure));
  }
}

}  // namespace
}  // namespace troupe::test
