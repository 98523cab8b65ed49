#include "actor_bench.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

std::vector<Ticket> tickets(const NotingCommunicator& communicator) {
  std::vector<Ticket> result;
  for (const CollectiveCall& call : communicator.calls) {
    result.push_back(call.ticket);
  }
  return result;
}

TEST_CASE("launches that arrive early are held back until their ticket's turn") {
  ActorBench bench;
  const BucketActor bucket = bench.spawn_bucket(0);
  bench.tell(bench.comm, bench.launch(3, bucket));
  bench.tell(bench.comm, bench.launch(2, bucket));
  CHECK(tickets(bench.communicator).empty());
  CHECK(bench.state().launched.load() == 0);
  bench.tell(bench.comm, bench.launch(1, bucket));
  CHECK(tickets(bench.communicator) == std::vector<Ticket>{1, 2, 3});
  CHECK(bench.state().launched.load() == 3);
}

TEST_CASE("a completion retires exactly its own ticket") {
  ActorBench bench;
  const BucketActor bucket = bench.spawn_bucket(0);
  bench.tell(bucket, Gather{.ticket = 1, .slot = 0});
  CHECK(bench.words().answered.load() == 0);
  bench.finish_stream();
  CHECK(bench.words().answered.load() == 1);
  CHECK(bench.state().completed.load() == 1);
  CHECK_FALSE(bench.state().failed.load());
}

TEST_CASE("a completion of a ticket that is not in flight is a fault that every rank hears of") {
  ActorBench bench;
  bench.tell(bench.comm, StreamDone{.ticket = 7, .report = {}});
  CHECK(bench.state().failed.load());
  CHECK(bench.state().failure.code == ErrorCode::internal);
  CHECK(bench.state().failure.text == "rank 0: completion of ticket 7, which is not in flight");
  CHECK(bench.communicator.aborted.size() == 1);
}

TEST_CASE("after a launch that fails nothing more is launched, and everybody is answered") {
  ActorBench bench;
  bench.communicator.refused = 2;
  const BucketActor first = bench.spawn_bucket(0);
  const BucketActor second = bench.spawn_bucket(1);
  const BucketActor third = bench.spawn_bucket(2);
  bench.tell(bench.supervisor,
             RegisterRuntime{.runtime = 0, .scheduler = {}, .buckets = {first, second, third}});
  bench.tell(third, Gather{.ticket = 3, .slot = 1});  // held back
  bench.tell(first, Gather{.ticket = 1, .slot = 0});
  bench.tell(second, Gather{.ticket = 2, .slot = 1});
  CHECK(tickets(bench.communicator) == std::vector<Ticket>{1});
  CHECK(bench.state().failure.text == "planted: refused");
  CHECK(bench.state().launched.load() == 1);  // what failed never looks launched
  bench.finish_stream();
  CHECK(bench.words().answered.load() == 3);
  for (BucketId bucket = 0; bucket < 3; ++bucket) {
    CHECK(bench.words().states[bucket].load() == BucketState::failed);
  }
  CHECK(bench.logs.size() == 1);
}

}  // namespace
}  // namespace troupe::test
