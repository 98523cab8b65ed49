/// What the actors add to a trace, message by message, and that they do no more than before
/// without one.
#include "actor_bench.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace troupe::test {
namespace {

struct Work {
  int messages = 0;
  int stream_steps = 0;
};

/// One bucket through gather, use, release, reduce and eviction.
Work life_of_a_bucket(RankTrace* trace) {
  ActorBench bench(trace);
  const BucketActor bucket = bench.spawn_bucket(0);
  bench.tell(bucket, Gather{.ticket = 1, .slot = 0});
  bench.tell(bucket, BeginUse{});
  bench.tell(bucket, BeginUse{});
  bench.tell(bucket, Contribute{.gradient_slot = 0});
  bench.tell(bucket, EndUse{});
  bench.tell(bucket, EndUse{});
  bench.tell(bucket, Reduce{.ticket = 2, .gradient_slot = 0, .first = true});
  bench.tell(bucket, Contribute{.gradient_slot = 0});
  bench.tell(bucket, Reduce{.ticket = 3, .gradient_slot = 0});
  bench.tell(bucket, Evict{});
  bench.finish_stream();
  CHECK(bench.communicator.calls.size() == 3);
  CHECK(bench.words().answered.load() == 3);
  return {bench.messages, bench.stream_steps};
}

TEST_CASE("without a trace nothing is added; with one a notification for each span, no message") {
  RankTrace trace(1000);
  const Work without = life_of_a_bucket(nullptr);
  const Work with = life_of_a_bucket(&trace);
  // Ten messages to the bucket; three launches, three ends heard and passed on.
  CHECK(without.messages == 10 + 3 * 3);
  CHECK(with.messages == without.messages);
  // The communicator issues nothing here: two sums and three ends.
  CHECK(without.stream_steps == 2 + 3);
  const std::vector<TraceSpan> spans = trace.spans();
  REQUIRE(spans.size() == 3 + 2);
  CHECK(with.stream_steps == without.stream_steps + static_cast<int>(spans.size()));
  std::vector<std::string> names;
  for (const TraceSpan& span : spans) {
    names.push_back(std::string(span.what) + " " + std::string(span.label) + " " +
                    std::to_string(span.ticket));
    CHECK(span.row == (span.ticket == 1 ? RankTrace::gather_row : RankTrace::reduce_row));
    CHECK(span.bucket == 0);
    CHECK_FALSE(span.failed);
  }
  std::ranges::sort(names);  // the communicator takes no time here, so times do not tell
  CHECK(names == std::vector<std::string>{"accumulate bucket 0 3", "all_gather bucket 0 1",
                                          "overwrite bucket 0 2", "reduce_scatter bucket 0 2",
                                          "reduce_scatter bucket 0 3"});
}

TEST_CASE("a bucket is counted in its state, and nowhere before and after its life") {
  RankTrace trace(1000);
  static_cast<void>(life_of_a_bucket(&trace));
  std::string course;
  for (const TraceCount& count : trace.counts()) {
    course +=
        std::to_string(static_cast<int>(count.counter)) + "=" + std::to_string(count.value) + " ";
  }
  // sharded (0), gathering (1), in use (2), ready (3), sharded, gone; a second use changes nothing.
  CHECK(course == "0=1 0=0 1=1 1=0 2=1 2=0 3=1 3=0 0=1 0=0 ");
}

TEST_CASE("a launch that is refused has no span, the cast before it has one") {
  RankTrace trace(1000);
  ActorBench bench(&trace);
  bench.communicator.refused = 1;
  std::vector<float> memory(8);
  std::vector<BFloat16> narrow(8);
  Launch launch = bench.launch(1, BucketActor());
  launch.own = std::make_shared<OwnCollective>();
  launch.cast = {DType::f32, memory.data(), DType::bf16, narrow.data(), 8};
  bench.tell(bench.comm, launch);
  bench.finish_stream();
  const std::vector<TraceSpan> spans = trace.spans();
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].what == "cast");
}

}  // namespace
}  // namespace troupe::test
