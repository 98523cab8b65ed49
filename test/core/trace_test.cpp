/// Tests of core/trace.hpp.
#include "troupe/core/trace.hpp"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

using std::chrono::nanoseconds;

TraceTime at(std::int64_t time) {
  return TraceTime(nanoseconds(time));
}

TraceSpan span(TraceRow row, std::int64_t begin, std::int64_t end, std::string_view label) {
  return {.row = row, .what = "forward", .label = label, .begin = at(begin), .end = at(end)};
}

TEST_CASE("spans come back by row and time, with labels of their own") {
  RankTrace trace(100);
  std::string label = "block.1";
  trace.add(span(1, 30, 40, label));
  label = "block.2";
  trace.add(span(0, 20, 30, label));
  label = "gone";
  trace.add(span(1, 10, 30, "block.0"));
  const std::vector<TraceSpan> spans = trace.spans();
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].label == "block.2");
  CHECK(spans[1].label == "block.0");
  CHECK(spans[2].label == "block.1");
  CHECK(spans[2].begin == at(30));
  CHECK(spans[2].end == at(40));
}

TEST_CASE("of spans at one time the one recorded first is first") {
  RankTrace trace(100);
  for (const char* label : {"c", "a", "b"}) {
    trace.add(span(0, 5, 5, label));
  }
  const std::vector<TraceSpan> spans = trace.spans();
  CHECK(spans[0].label == "c");
  CHECK(spans[1].label == "a");
  CHECK(spans[2].label == "b");
}

TEST_CASE("a counter has the sum of its changes from each change on") {
  RankTrace trace(100);
  trace.count(TraceCounter::ready, 2, at(1));
  trace.count(TraceCounter::in_use, 5, at(2));
  trace.count(TraceCounter::ready, -3, at(3));
  const std::vector<TraceCount> counts = trace.counts();
  REQUIRE(counts.size() == 3);
  CHECK(counts[0].value == 2);
  CHECK(counts[1].value == 5);
  CHECK(counts[1].counter == TraceCounter::in_use);
  CHECK(counts[2].value == -1);
  CHECK(counts[2].time == at(3));
}

TEST_CASE("the counters of bucket states are those of the states") {
  CHECK(counter_of(BucketState::sharded) == TraceCounter::sharded);
  CHECK(counter_of(BucketState::gathering) == TraceCounter::gathering);
  CHECK(counter_of(BucketState::in_use) == TraceCounter::in_use);
  CHECK(counter_of(BucketState::ready) == TraceCounter::ready);
  CHECK(counter_of(BucketState::failed) == TraceCounter::failed);
}

TEST_CASE("what comes after the limit is counted and dropped, the first records stay") {
  RankTrace trace(3);
  trace.add(span(0, 1, 2, "a"));
  trace.count(TraceCounter::ready, 1, at(2));
  CHECK(trace.dropped() == 0);
  trace.add(span(0, 3, 4, "b"));
  trace.add(span(0, 5, 6, "c"));
  trace.count(TraceCounter::ready, 1, at(6));
  CHECK(trace.dropped() == 2);
  REQUIRE(trace.spans().size() == 2);
  CHECK(trace.spans()[1].label == "b");
  CHECK(trace.counts().size() == 1);
}

TEST_CASE("a span that ends before it begins, or is of no row, is counted and dropped") {
  RankTrace trace(100);
  trace.add(span(0, 2, 1, "backwards"));
  trace.add(span(7, 1, 2, "of no row"));
  CHECK(trace.dropped() == 2);
  CHECK(trace.spans().empty());
  trace.add(span(2, 2, 2, "short"));
  CHECK(trace.spans().size() == 1);
}

TEST_CASE("rows that are acquired at once differ, those given back are used again") {
  RankTrace trace(100);
  const int stream = 0;
  const TraceRow first = trace.acquire_row(nullptr, "compute");
  const TraceRow second = trace.acquire_row(nullptr, "compute");
  const TraceRow other = trace.acquire_row(&stream, "compute");
  trace.release_row(first);
  CHECK(trace.acquire_row(nullptr, "compute") == first);
  const TraceRow third = trace.acquire_row(nullptr, "compute");
  CHECK(second != first);
  CHECK(other != first);
  const std::vector<std::string> names = trace.rows();
  CHECK(names == std::vector<std::string>{"gather", "reduce", "waits", "compute", "compute 2",
                                          "compute", "compute 3"});
  CHECK(names[RankTrace::gather_row] == "gather");
  CHECK(names[RankTrace::reduce_row] == "reduce");
  CHECK(names[RankTrace::waits_row] == "waits");
  CHECK(names[other] == "compute");
  CHECK(names[third] == "compute 3");
}

TEST_CASE("a rank is made when it is first asked for and stays in place") {
  Trace trace(1);
  CHECK(trace.rank_count() == 0);
  RankTrace& third = trace.of_rank(2);
  CHECK(trace.rank_count() == 3);
  third.add(span(0, 1, 2, "a"));
  for (int rank = 3; rank < 100; ++rank) {
    trace.of_rank(rank).add(span(0, 1, 2, "b"));
    trace.of_rank(rank).add(span(0, 1, 2, "dropped"));
  }
  CHECK(&trace.of_rank(2) == &third);
  CHECK(trace[2].spans().size() == 1);
  CHECK(trace[1].spans().empty());
  CHECK(trace[99].dropped() == 1);
}

TEST_CASE("threads that record at once lose nothing") {
  constexpr int threads = 4;
  constexpr int each = 2000;
  RankTrace trace(threads * each * 2);
  CHECK(trace.acquire_row(nullptr, "compute") == threads - 1);  // a row for each
  std::vector<std::thread> all;
  for (int thread = 0; thread < threads; ++thread) {
    all.emplace_back([&trace, thread] {
      for (int i = 0; i < each; ++i) {
        trace.add(span(static_cast<TraceRow>(thread), i, i + 1, "unit." + std::to_string(i % 7)));
        trace.count(TraceCounter::ready, 1, at(i));
      }
    });
  }
  for (std::thread& thread : all) {
    thread.join();
  }
  CHECK(trace.spans().size() == threads * each);
  CHECK(trace.counts().size() == threads * each);
  std::int64_t most = 0;
  for (const TraceCount& count : trace.counts()) {
    most = std::max(most, count.value);
  }
  CHECK(most == threads * each);
  CHECK(trace.dropped() == 0);
}

}  // namespace
}  // namespace troupe::test
