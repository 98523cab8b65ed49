#include "support/local_ranks.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

namespace troupe::test {
namespace {

CollectiveCall all_reduce(float& value, Ticket ticket) {
  return {.op = Collective::all_reduce,
          .ticket = ticket,
          .input = &value,
          .output = &value,
          .numel = 1};
}

TEST_CASE("a group of some ranks sums over those, by their place in the group") {
  for (const auto workers : {StreamWorkers::threads, StreamWorkers::manual}) {
    LocalRanks ranks(4, workers);
    const std::vector<std::vector<int>> groups{{0, 2}, {1, 3}};
    std::vector<float> values{1, 2, 4, 8};
    std::vector<std::unique_ptr<Communicator>> communicators;
    for (int rank = 0; rank < 4; ++rank) {
      const auto& group = groups[static_cast<std::size_t>(rank % 2)];
      communicators.push_back(ranks.world.communicator(rank, group, 0));
      CHECK(communicators.back()->rank() == rank / 2);
      CHECK(communicators.back()->size() == 2);
      auto& value = values[static_cast<std::size_t>(rank)];
      REQUIRE(communicators.back()->launch(all_reduce(value, 1), ranks.stream(rank)).ok());
    }
    if (workers == StreamWorkers::manual) {
      CHECK(step_all(ranks.streams()));
    } else {
      for (HostStream* stream : ranks.streams()) {
        CHECK_FALSE(settle(*stream).failure);
      }
    }
    CHECK(values == std::vector<float>{5, 10, 5, 10});
  }
}

TEST_CASE("failures name world ranks, not places in the group") {
  LocalRanks ranks(4, StreamWorkers::manual);
  const std::vector<int> group{1, 3};
  float value = 0;
  REQUIRE(
      ranks.world.communicator(1, group, 0)->launch(all_reduce(value, 1), ranks.stream(1)).ok());
  REQUIRE(
      ranks.world.communicator(3, group, 0)->launch(all_reduce(value, 2), ranks.stream(3)).ok());
  step_all(ranks.streams());
  REQUIRE(ranks.stream(1).failure());
  CHECK(ranks.stream(1).failure()->rank == 3);
  CHECK(ranks.stream(1).failure()->text.find("rank 3 launched another collective than rank 1 ") ==
        0);
  CHECK(ranks.stream(3).failure() == ranks.stream(1).failure());
}

TEST_CASE("a group that is no ascending list with the rank in it is refused") {
  LocalWorld world(3, patience);
  for (const std::vector<int>& ranks :
       {std::vector<int>{}, {0, 1}, {2, 1}, {1, 1, 2}, {-1, 2}, {2, 3}}) {
    CHECK_THROWS_AS(world.communicator(2, ranks, 0), Error);
  }
  CHECK(world.communicator(2, {2}, 0)->size() == 1);
}

TEST_CASE("two channels of one group go on independently") {
  LocalRanks ranks(2, StreamWorkers::manual, patience, Clock::steady(), 2);
  float first[] = {1, 2};
  float second[] = {10, 20};
  // Rank 1 never comes to channel 0; channel 1 goes through three collectives meanwhile.
  REQUIRE(ranks.communicator(0, 0).launch(all_reduce(first[0], 1), ranks.stream(0, 0)).ok());
  step_all(ranks.streams(0));
  for (Ticket ticket = 2; ticket < 5; ++ticket) {
    for (int rank = 0; rank < 2; ++rank) {
      REQUIRE(ranks.communicator(rank, 1)
                  .launch(all_reduce(second[rank], ticket), ranks.stream(rank, 1))
                  .ok());
    }
  }
  CHECK(step_all(ranks.streams(1)));
  CHECK(second[0] == 120);
  CHECK(second[1] == 120);
  CHECK_FALSE(ranks.stream(0, 0).idle());
  REQUIRE(ranks.communicator(1, 0).launch(all_reduce(first[1], 1), ranks.stream(1, 0)).ok());
  CHECK(step_all(ranks.streams(0)));
  CHECK(first[0] == 3);
}

TEST_CASE("collectives of a communicator keep their order on different streams") {
  LocalRanks ranks(2, StreamWorkers::manual, patience, Clock::steady(), 2);
  float values[] = {1, 2};
  for (int rank = 0; rank < 2; ++rank) {
    for (Ticket ticket = 1; ticket <= 3; ++ticket) {
      HostStream& stream = ranks.stream(rank, ticket == 2 ? 1 : 0);
      REQUIRE(ranks.communicator(rank, 0).launch(all_reduce(values[rank], ticket), stream).ok());
    }
  }
  CHECK_FALSE(ranks.stream(0, 1).step());  // ticket 2 before ticket 1
  CHECK_FALSE(ranks.stream(1, 1).step());
  std::vector<HostStream*> streams;
  for (const int channel : {1, 0}) {
    for (HostStream* stream : ranks.streams(channel)) {
      streams.push_back(stream);
    }
  }
  CHECK(step_all(streams));
  CHECK_FALSE(ranks.world.first_failure().get());
  CHECK(values[0] == 12);
  CHECK(values[1] == 12);
}

TEST_CASE("the order over different streams holds with threads, and none sleeps on") {
  LocalRanks ranks(2, StreamWorkers::threads, patience, Clock::steady(), 2);
  float values[] = {1, 0};
  constexpr Ticket rounds = 500;
  const TimePoint begin = Clock::steady().now();
  for (Ticket ticket = 1; ticket <= rounds; ++ticket) {
    for (int rank = 0; rank < 2; ++rank) {
      CollectiveCall call = all_reduce(values[rank], ticket);
      call.op = Collective::broadcast;
      HostStream& stream = ranks.stream(rank, static_cast<int>(ticket % 2));
      REQUIRE(ranks.communicator(rank, 0).launch(call, stream).ok());
    }
  }
  for (const int channel : {0, 1}) {
    for (HostStream* stream : ranks.streams(channel)) {
      CHECK_FALSE(settle(*stream).failure);
    }
  }
  CHECK(values[1] == 1);
  CHECK(Clock::steady().now() - begin < rounds * std::chrono::milliseconds(10));
}

TEST_CASE("communicators and collectives may outlive the world, and communicators their streams") {
  auto world = std::make_unique<LocalWorld>(2, patience);
  const std::vector<int> both{0, 1};
  auto first = world->communicator(0, both, 0);
  auto second = world->communicator(1, both, 0);
  float values[] = {1, 2};
  {
    HostDevice device;
    HostStream& one = device.create_host_stream("one");
    HostStream& other = device.create_host_stream("other");
    REQUIRE(first->launch(all_reduce(values[0], 1), one).ok());
    world.reset();
    REQUIRE(second->launch(all_reduce(values[1], 1), other).ok());
    settle(one);
    settle(other);
    CHECK(values[0] == 3);
  }
  // New streams, and another pair of communicators of the same group would do as well.
  HostDevice device;
  HostStream& one = device.create_host_stream("one");
  HostStream& other = device.create_host_stream("other");
  REQUIRE(second->launch(all_reduce(values[1], 2), other).ok());
  REQUIRE(first->launch(all_reduce(values[0], 2), one).ok());
  CHECK_FALSE(settle(one).failure);
  CHECK_FALSE(settle(other).failure);
  CHECK(values[1] == 6);
}

}  // namespace
}  // namespace troupe::test
