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

/// So few bytes that the last to arrive moves them for all, and so many that each rank does its
/// part.
constexpr std::size_t payloads[] = {20'000, 2'000'000};

/// Two ranks in a broadcast. Rank 0, the root, is stepped by the test; rank 1 has a thread, which
/// arrives last and is held up while it reads rank 0's input.
class HeldBroadcast {
 public:
  explicit HeldBroadcast(std::size_t bytes)
      : held(bytes),
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
    root->step();
    call.input = nullptr;
    call.output = copied.data();
    REQUIRE(world.communicator(1, both, 0)->launch(call, *reader).ok());
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
  for (const std::size_t bytes : payloads) {
    CAPTURE(bytes);
    HeldBroadcast broadcast(bytes);
    const Event done = broadcast.root->record();
    for (int look = 0; look < 10; ++look) {
      CHECK_FALSE(broadcast.root->step());
    }
    broadcast.held.let_go();
    CHECK_FALSE(settle(*broadcast.reader).failure);
    CHECK(broadcast.root->step());
    CHECK(done.done());
  }
}

TEST_CASE("an aborted collective does not end on a rank while a peer reads its buffer") {
  for (const std::size_t bytes : payloads) {
    CAPTURE(bytes);
    HeldBroadcast broadcast(bytes);
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
}

TEST_CASE("a stream that is stopped does not let go of its buffer while a peer reads it") {
  for (const std::size_t bytes : payloads) {
    CAPTURE(bytes);
    HeldBroadcast broadcast(bytes);
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

/// Two ranks gather, stepped by the test: rank 0 arrives first.
class SteppedGather {
 public:
  explicit SteppedGather(std::size_t bytes)
      : ranks(2, StreamWorkers::manual),
        own(bytes / sizeof(float)),
        gathered(2, std::vector<float>(2 * own.size())) {
    for (int rank = 0; rank < 2; ++rank) {
      REQUIRE(ranks.communicator(rank)
                  .launch({.op = Collective::all_gather,
                           .ticket = 1,
                           .input = own.data(),
                           .output = gathered[static_cast<std::size_t>(rank)].data(),
                           .numel = static_cast<std::int64_t>(own.size())},
                          ranks.stream(rank))
                  .ok());
    }
  }

  LocalRanks ranks;
  std::vector<float> own;
  std::vector<std::vector<float>> gathered;
};

TEST_CASE("a collective that all have left is done, also when an abort comes before a rank looks") {
  SUBCASE("the last to arrive has moved all") {
    SteppedGather gather(payloads[0]);
    CHECK_FALSE(gather.ranks.stream(0).step());  // arrived
    CHECK(gather.ranks.stream(1).step());        // arrived, moved all
    gather.ranks.world.abort(boom);
    CHECK(gather.ranks.stream(0).step());
    CHECK_FALSE(gather.ranks.stream(0).failure());
  }
  SUBCASE("each has done its part") {
    SteppedGather gather(payloads[1]);
    CHECK_FALSE(gather.ranks.stream(0).step());  // arrived
    CHECK_FALSE(gather.ranks.stream(1).step());  // arrived, left; waits for rank 0
    CHECK(gather.ranks.stream(0).step());        // left: all have
    gather.ranks.world.abort(boom);
    CHECK(gather.ranks.stream(1).step());
    CHECK_FALSE(gather.ranks.stream(1).failure());
  }
}

TEST_CASE("a stream that is stopped harms no collective that all have left") {
  SUBCASE("the last to arrive has moved all") {
    SteppedGather gather(payloads[0]);
    CHECK_FALSE(gather.ranks.stream(0).step());  // arrived, and does not look again
    CHECK(gather.ranks.stream(1).step());
    gather.ranks.stream(0).stop();
    CHECK_FALSE(gather.ranks.world.first_failure().get());
  }
  SUBCASE("each has done its part") {
    SteppedGather gather(payloads[1]);
    CHECK_FALSE(gather.ranks.stream(0).step());
    CHECK_FALSE(gather.ranks.stream(1).step());  // left, and does not look again
    CHECK(gather.ranks.stream(0).step());
    gather.ranks.stream(1).stop();
    CHECK_FALSE(gather.ranks.world.first_failure().get());
  }
}

/// Tries streams again and again, as other progress and retries do now and then.
class Poker {
 public:
  explicit Poker(LocalRanks& ranks)
      : thread_([this, &ranks] {
          while (!over_) {
            for (HostStream* stream : ranks.streams()) {
              static_cast<Wakeable&>(*stream).notify();
            }
          }
        }) {}
  Poker(const Poker&) = delete;
  Poker& operator=(const Poker&) = delete;
  ~Poker() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST_CASE("no payload of calls that disagree moves, however often the streams are tried") {
  for (int round = 0; round < 100; ++round) {
    CAPTURE(round);
    constexpr int size = 3;
    LocalRanks ranks(size, StreamWorkers::threads);
    std::vector<float> values{1, 2, 4};
    {
      const Poker poker(ranks);
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
    }
    REQUIRE(values == std::vector<float>{1, 2, 4});
  }
}

TEST_CASE("each payload moves once, however often the streams are tried") {
  constexpr int size = 3;
  constexpr std::size_t numel = 4096;
  for (const std::int64_t one_mover_bytes_max :
       {std::int64_t{LocalWorld::default_one_mover_bytes_max}, each_its_part}) {
    CAPTURE(one_mover_bytes_max);
    LocalRanks ranks(size, StreamWorkers::threads, patience, Clock::steady(), 1,
                     one_mover_bytes_max);
    std::vector<std::vector<float>> values(size, std::vector<float>(numel, 1.0F));
    {
      const Poker poker(ranks);
      constexpr Ticket rounds = 10;  // 3^10 is exact
      for (Ticket ticket = 1; ticket <= rounds; ++ticket) {
        for (int rank = 0; rank < size; ++rank) {
          float* data = values[static_cast<std::size_t>(rank)].data();
          REQUIRE(ranks.communicator(rank)
                      .launch({.op = Collective::all_reduce,
                               .ticket = ticket,
                               .input = data,
                               .output = data,
                               .numel = numel},
                              ranks.stream(rank))
                      .ok());
        }
      }
      for (HostStream* stream : ranks.streams()) {
        CHECK_FALSE(settle(*stream).failure);
      }
    }
    for (const auto& sums : values) {
      CHECK(std::ranges::count(sums, 59049.0F) == static_cast<std::ptrdiff_t>(numel));
    }
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
