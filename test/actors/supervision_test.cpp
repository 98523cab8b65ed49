#include "actor_bench.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

Failure named(const char* text) {
  return {.code = ErrorCode::device, .text = text};
}

TEST_CASE("the first failure stands, and is acted upon once") {
  ActorBench bench;
  bench.tell(bench.supervisor, Failed{named("first")});
  bench.tell(bench.supervisor, Failed{named("second")});
  bench.tell(bench.supervisor, PeerFailed{named("third")});
  CHECK(bench.state().failed.load());
  CHECK(bench.state().failure.text == "first");
  CHECK(bench.communicator.aborted == std::vector<std::string>{"first"});
}

TEST_CASE("a runtime that registers after the failure is stopped as well") {
  ActorBench bench;
  const BucketActor bucket = bench.spawn_bucket(0);
  bench.tell(bench.supervisor, Failed{named("early")});
  CHECK(bench.words().states[0].load() == BucketState::sharded);
  bench.tell(bench.supervisor, RegisterRuntime{.runtime = 0, .scheduler = {}, .buckets = {bucket}});
  CHECK(bench.words().states[0].load() == BucketState::failed);
}

TEST_CASE("a failed bucket answers requests and changes nothing") {
  ActorBench bench;
  const BucketActor bucket = bench.spawn_bucket(0);
  bench.tell(bucket, Stop{});
  bench.tell(bucket, Gather{.ticket = 1, .slot = 0});
  bench.tell(bucket, BeginUse{});
  bench.tell(bucket, Reduce{.ticket = 2, .gradient_slot = 0});
  CHECK(bench.words().answered.load() == 2);
  CHECK(bench.words().states[0].load() == BucketState::failed);
  CHECK(bench.communicator.calls.empty());
  CHECK_FALSE(bench.state().failed.load());
}

TEST_CASE("a bucket counts its uses and goes through the states of the table") {
  ActorBench bench;
  const BucketActor bucket = bench.spawn_bucket(2);
  const auto state = [&] { return bench.words().states[2].load(); };
  bench.tell(bucket, Gather{.ticket = 1, .slot = 0});
  CHECK(state() == BucketState::gathering);
  bench.tell(bucket, BeginUse{});
  bench.tell(bucket, BeginUse{});
  bench.tell(bucket, EndUse{});
  CHECK(state() == BucketState::in_use);
  bench.tell(bucket, EndUse{});
  CHECK(state() == BucketState::ready);
  bench.tell(bucket, Evict{});
  CHECK(state() == BucketState::sharded);
}

#ifdef NDEBUG  // debug builds stop at the place
TEST_CASE("a message that the table has no row for is a fault that names bucket, state and event") {
  ActorBench bench;
  const BucketActor bucket = bench.spawn_bucket(3);
  bench.tell(bucket, Evict{});
  CHECK(bench.state().failure.code == ErrorCode::internal);
  CHECK(bench.state().failure.text ==
        "rank 0, bucket 3 'bucket 3': no row for 'evict' in state 'sharded'");
}

TEST_CASE("a reduce of a gradient that nobody fills is a fault, and is answered") {
  ActorBench bench;
  const BucketActor bucket = bench.spawn_bucket(1);
  bench.tell(bucket, Reduce{.ticket = 1, .gradient_slot = 0});
  CHECK(bench.state().failure.text ==
        "rank 0, bucket 1 'bucket 1': a reduce of a gradient that is not filling (ticket 1)");
  CHECK(bench.words().answered.load() == 1);
}
#endif

}  // namespace
}  // namespace troupe::test
