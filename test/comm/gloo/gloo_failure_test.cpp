#include "gloo_ranks.hpp"
#include "troupe/test/comm/support/collectives_contract.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

const Failure boom{.code = ErrorCode::peer_failed, .text = "rank 1 failed: boom", .rank = 1};

void launch(GlooRanks& ranks, int rank, const CollectiveCall& call, int channel = 0) {
  REQUIRE(ranks.communicator(rank, channel).launch(call, ranks.stream(rank, channel)).ok());
}

/// An all_reduce in place of what takes a while to move.
constexpr std::int64_t large_numel = 16 << 20;
CollectiveCall large_call(std::vector<float>& values) {
  return {.op = Collective::all_reduce,
          .ticket = 1,
          .input = values.data(),
          .output = values.data(),
          .numel = static_cast<std::int64_t>(values.size())};
}

template <class Condition>
void await(const Condition& condition) {
  const TimePoint give_up = std::chrono::steady_clock::now() + patience;
  while (!condition() && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  REQUIRE(condition());
}

TEST_CASE("a rank that does not come is waited for until the deadline, and that is told first") {
  for (const Collective op : all_collectives) {
    CAPTURE(to_string(op));
    GlooRanks ranks(3, {.timeout = std::chrono::milliseconds{200}});
    std::vector<float> values(3);
    for (const int rank : {0, 1}) {
      launch(ranks, rank,
             {.op = op,
              .ticket = 9,
              .input = op == Collective::barrier ? nullptr : values.data() + rank,
              .output = op == Collective::barrier      ? nullptr
                        : op == Collective::all_gather ? values.data()
                                                       : values.data() + rank,
              .numel = op == Collective::barrier          ? 0
                       : op == Collective::reduce_scatter ? 0
                                                          : 1});
    }
    const Failure first = settle(ranks.stream(0)).failure.value_or(Failure{});
    CHECK(first.code == ErrorCode::timeout);
    CHECK(first.ticket == 9);
    CHECK(ranks.world.suspicions().front().kind == Suspicion::Kind::timeout);
    CHECK(ranks.world.suspicions().front().waited_ms >= 200);
    CHECK(ranks.world.suspicions().front().turn == 0);
    CHECK(ranks.world.suspicions().front().group == GroupName{{0, 1, 2}, 0});
    // Rank 1 may be done: an empty collective asks the left neighbour only.
    const auto second = settle(ranks.stream(1)).failure;
    CHECK((!second || second == first));
  }
}

TEST_CASE("who loses a peer in the middle names it, and all end with one failure") {
  for (const int size : {2, 3, 4}) {
    CAPTURE(size);
    GlooRanks ranks(size);
    std::vector<std::vector<float>> values(static_cast<std::size_t>(size),
                                           std::vector<float>(large_numel, 1.0F));
    for (int rank = 0; rank < size; ++rank) {
      launch(ranks, rank, large_call(values[static_cast<std::size_t>(rank)]));
    }
    await([&] { return values[0][0] != 1.0F; });  // the sum of the first segment
    ranks.world.break_off(1, boom);
    CHECK(settle(ranks.stream(1)).failure == boom);
    for (int rank = 0; rank < size; ++rank) {
      const auto failure = settle(ranks.stream(rank)).failure;
      if (rank != 1 && failure) {
        CHECK(failure == ranks.world.failure());
        CHECK(failure->code == ErrorCode::peer_failed);
      }
    }
    REQUIRE_FALSE(ranks.world.suspicions().empty());
    CHECK(ranks.world.suspicions().front().kind == Suspicion::Kind::connection);
    CHECK(ranks.world.suspicions().front().peer == 1);
  }
}

TEST_CASE("a connection that is lost in the middle of its only message is noticed") {
  GlooRanks ranks(2, {.segment_bytes = std::int64_t{1} << 30,
                      .staging_bytes = std::int64_t{1} << 31,
                      .timeout = std::chrono::seconds{20}});
  std::vector<std::vector<float>> values(2, std::vector<float>(2 * large_numel, 1.0F));
  for (int rank = 0; rank < 2; ++rank) {
    auto& mine = values[static_cast<std::size_t>(rank)];
    std::fill_n(mine.begin() + rank * large_numel, large_numel, 2.0F);
    launch(ranks, rank,
           {.op = Collective::all_gather,
            .ticket = 1,
            .input = mine.data() + rank * large_numel,
            .output = mine.data(),
            .numel = large_numel});
  }
  await([&] { return values[0][large_numel] == 2.0F; });  // the first bytes are there
  ranks.world.break_off(1, boom);
  const Failure failure = settle(ranks.stream(0)).failure.value_or(Failure{});
  CHECK(failure.text.find("rank 0 lost rank 1 in all_gather (ticket 1)") == 0);
}

TEST_CASE("buffers of a collective that has ended are not touched, though peers go on sending") {
  GlooRanks ranks(2);
  std::vector<float> first(large_numel, 1.0F);
  std::vector<float> second(large_numel, 2.0F);
  launch(ranks, 0, large_call(first));
  launch(ranks, 1, large_call(second));
  await([&] { return first[0] != 1.0F; });
  ranks.world.break_off(0, boom);
  CHECK(settle(ranks.stream(0)).failure == boom);
  std::ranges::fill(first, 7.0F);
  settle(ranks.stream(1));
  CHECK(std::ranges::count(first, 7.0F) == large_numel);
}

TEST_CASE("an abort ends a collective in the middle of its payload on every rank") {
  GlooRanks ranks(3);
  std::vector<std::vector<float>> values(3, std::vector<float>(large_numel, 1.0F));
  for (int rank = 0; rank < 3; ++rank) {
    launch(ranks, rank, large_call(values[static_cast<std::size_t>(rank)]));
  }
  await([&] { return values[0][0] != 1.0F; });
  ranks.communicator(2).abort(boom);
  for (const auto& failure : ranks.settle()) {
    CHECK((!failure || failure == boom));
  }
  CHECK(ranks.world.failure() == boom);
  // Who was interrupted has nothing to tell, and who has heard of the failure neither.
  CHECK(ranks.world.suspicions().empty());
}

TEST_CASE("a stream's own failure reaches the peers with its text") {
  GlooRanks ranks(3);
  ranks.stream(1).run([] { throw std::runtime_error("boom at layer 2"); });
  const CollectiveCall barrier{.op = Collective::barrier, .ticket = 6};
  for (int rank = 0; rank < 3; ++rank) {
    const auto launched = ranks.communicator(rank).launch(barrier, ranks.stream(rank));
    CHECK((launched.ok() || launched.failure().rank == -1));
  }
  settle(ranks.stream(1));
  const auto suspicions = ranks.world.suspicions();
  REQUIRE_FALSE(suspicions.empty());
  CHECK(suspicions[0].kind == Suspicion::Kind::dropped);
  CHECK(suspicions[0].rank == 1);
  CHECK(suspicions[0].text == "stream 'channel 0': boom at layer 2");
  for (const int rank : {0, 2}) {
    const auto failure = settle(ranks.stream(rank)).failure;
    CHECK((!failure || failure == ranks.world.failure()));
  }
}

TEST_CASE("a collective that would wait for a rank that has left does not begin") {
  GlooRanks ranks(2);
  ranks.world.leave(1);
  launch(ranks, 0, {.op = Collective::barrier, .ticket = 4});
  const Failure failure = settle(ranks.stream(0)).failure.value_or(Failure{});
  CHECK(failure.text == "barrier (ticket 4) waits for rank 1, which has left");
  CHECK(ranks.world.suspicions().empty());
}

TEST_CASE("who closes right after the last collective cuts nobody off") {
  constexpr std::int64_t numel = 2'000'000;
  for (int round = 0; round < 10; ++round) {
    GlooRanks ranks(2);
    std::vector<std::vector<float>> values(2, std::vector<float>(numel));
    std::ranges::fill(values[0], static_cast<float>(round + 1));
    for (int rank = 0; rank < 2; ++rank) {
      float* const data = values[static_cast<std::size_t>(rank)].data();
      launch(ranks, rank,
             {.op = Collective::broadcast,
              .ticket = 1,
              .input = data,
              .output = data,
              .numel = numel});
    }
    CHECK_FALSE(settle(ranks.stream(0)).failure);
    ranks.close(0);  // what it has sent may not have arrived yet
    const auto failure = settle(ranks.stream(1)).failure;
    REQUIRE_MESSAGE(!failure, failure->text);
    CHECK(std::ranges::count(values[1], static_cast<float>(round + 1)) == numel);
  }
}

TEST_CASE("collectives of one communicator on two streams run in the order launched") {
  GlooRanks ranks(2, {}, 2);
  std::vector<float> values{1, 2};
  for (Ticket ticket = 1; ticket <= 6; ++ticket) {
    for (int rank = 0; rank < 2; ++rank) {
      float* const value = &values[static_cast<std::size_t>(rank)];
      const CollectiveCall call{.op = Collective::all_reduce,
                                .ticket = ticket,
                                .input = value,
                                .output = value,
                                .numel = 1};
      // The same communicator; ranks choose the stream otherwise.
      const int stream = static_cast<int>(ticket + static_cast<Ticket>(rank)) % 2;
      REQUIRE(ranks.communicator(rank).launch(call, ranks.stream(rank, stream)).ok());
    }
  }
  for (const int channel : {0, 1}) {
    for (const auto& failure : ranks.settle(channel)) {
      CHECK_FALSE(failure);
    }
  }
  CHECK(values == std::vector<float>{96, 96});
}

TEST_CASE("after a failure launches are refused, and the next epoch's communicators work") {
  GlooRanks ranks(3);
  ranks.world.abort(boom);
  for (int rank = 0; rank < 3; ++rank) {
    const auto launched = ranks.communicator(rank).launch({.op = Collective::barrier, .ticket = 1},
                                                          ranks.stream(rank));
    REQUIRE_FALSE(launched.ok());
    CHECK(launched.failure() == boom);
  }
  for (int rank = 0; rank < 3; ++rank) {
    ranks.close(rank);
  }
  CHECK(ranks.world.watched() == 0);
  ranks.world.renew();
  ranks.connect(2);
  std::vector<float> values{1, 2, 3};
  for (int rank = 0; rank < 3; ++rank) {
    float* const value = &values[static_cast<std::size_t>(rank)];
    launch(
        ranks, rank,
        {.op = Collective::all_reduce, .ticket = 1, .input = value, .output = value, .numel = 1});
  }
  for (const auto& failure : ranks.settle()) {
    CHECK_FALSE(failure);
  }
  CHECK(values == std::vector<float>{6, 6, 6});
}

// ---- connecting -----------------------------------------------------------------------------

struct Lonely {
  explicit Lonely(const GlooOptions& options) : transport(make_gloo_transport(options, *store)) {}

  std::string connect() {
    try {
      transport->connect(1, {.ranks = {0, 1}, .channel = 0}, world.link(0));
    } catch (const Error& error) {
      return error.what();
    }
    return "connected";
  }

  TestWorld world{2};
  std::unique_ptr<Store> store = make_memory_store(make_memory_store_hub());
  std::unique_ptr<GroupTransport> transport;
};

TEST_CASE("who connects to a rank that does not come says so at the deadline") {
  Lonely lonely({.timeout = std::chrono::milliseconds{300}});
  CHECK(lonely.connect().find("could not connect to the other ranks") != std::string::npos);
  REQUIRE(lonely.world.suspicions().size() == 1);
  CHECK(lonely.world.suspicions()[0].kind == Suspicion::Kind::timeout);
  CHECK(lonely.world.suspicions()[0].waited_ms >= 300);
  CHECK(lonely.world.watched() == 0);
}

TEST_CASE("who connects hears of the world's failure meanwhile") {
  Lonely lonely({});
  std::thread other([&] { lonely.world.abort(boom); });
  CHECK(lonely.connect() == boom.text);
  other.join();
  CHECK(lonely.world.suspicions().empty());
}

TEST_CASE("ranks that would cut their messages differently are refused") {
  Lonely first({.timeout = std::chrono::milliseconds{1}});
  first.connect();
  const auto transport = make_gloo_transport({.segment_bytes = 4096}, *first.store);
  try {
    transport->connect(1, {.ranks = {0, 1}, .channel = 0}, first.world.link(1));
    FAIL("connected");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) ==
          "rank 1 communicates in another way than others: expected rank order, segments of 524288 "
          "bytes, staging of 16777216 bytes, actual rank order, segments of 4096 bytes, staging of "
          "16777216 bytes");
    CHECK(error.code() == ErrorCode::bad_configuration);
    CHECK(error.failure().rank == 1);
  }
}

TEST_CASE("an address or an interface of another host is refused by name") {
  const auto store = make_memory_store(make_memory_store_hub());
  const auto refusal = [&](const GlooOptions& options) {
    try {
      make_gloo_transport(options, *store);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_configuration);
      return std::string(error.what());
    }
    return std::string("made");
  };
  CHECK(refusal({.address = "192.0.2.1"}) == "this host has no address '192.0.2.1'");
  CHECK(refusal({.address = "no such name"}) == "this host has no address 'no such name'");
  CHECK(refusal({.address = "", .interface_name = "nowhere0"}) ==
        "this host has no interface 'nowhere0'");
  CHECK(refusal({.address = ""}) == "Gloo needs an address or an interface of this host");
  CHECK(refusal({.segment_bytes = 0}).find("Gloo cannot use") != std::string::npos);
  CHECK(refusal({.address = "", .interface_name = "lo"}) == "made");
  CHECK(refusal({.address = "localhost"}) == "made");
}

std::ptrdiff_t count_entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder),
                       std::filesystem::directory_iterator());
}

TEST_CASE("200 times connected and closed, in use or not, nothing is left") {
  const auto cycle = [](int number) {
    GlooRanks ranks(2);
    if (number % 2 == 0) {
      for (int rank = 0; rank < 2; ++rank) {
        launch(ranks, rank, {.op = Collective::barrier, .ticket = 1});
      }
      ranks.settle();
    }
    if (number % 4 == 3) {
      launch(ranks, 0, {.op = Collective::barrier, .ticket = 1});
      ranks.world.abort(boom);
    }
  };
  cycle(0);
  const auto descriptors = count_entries("/proc/self/fd");
  const auto threads = count_entries("/proc/self/task");
  for (int number = 0; number < 200; ++number) {
    cycle(number);
  }
  CHECK(count_entries("/proc/self/fd") == descriptors);
  CHECK(count_entries("/proc/self/task") == threads);
}

}  // namespace
}  // namespace troupe::test
