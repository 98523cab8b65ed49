/// Tests of runtime/chrome_trace.hpp: the text, byte by byte. That JSON parsers read it is shown by
/// test/examples/check_trace.cmake.
#include "troupe/runtime/chrome_trace.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <string>

namespace troupe::test {
namespace {

TraceTime at(std::int64_t nanoseconds) {
  return TraceTime(std::chrono::nanoseconds(nanoseconds));
}

std::string written(const Trace& trace) {
  std::ostringstream out;
  write_chrome_trace(out, trace);
  return out.str();
}

/// The line of the only span of a trace, from its name on.
std::string line_of(const TraceSpan& span) {
  Trace trace;
  trace.of_rank(0).add(span);
  const std::string text = written(trace);
  const std::size_t begin = text.find("{\"ph\":\"X\",\"name\":") + 17;
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::string name_of(std::string_view label) {
  const std::string line = line_of({.what = "", .label = label, .begin = at(0), .end = at(0)});
  return line.substr(0, line.find(",\"pid\""));
}

TEST_CASE("a trace is one process per rank, one thread per row with spans, and counters") {
  Trace trace;
  RankTrace& rank = trace.of_rank(1);
  const TraceRow compute = rank.acquire_row(nullptr, "compute");
  static_cast<void>(rank.acquire_row(&trace, "without spans"));
  rank.add({.row = RankTrace::waits_row,
            .what = "wait for",
            .label = "the gather",
            .begin = at(2'000'000),
            .end = at(2'000'001),
            .ticket = 7,
            .bucket = 3});
  rank.add({.row = compute,
            .what = "forward",
            .label = "block.0",
            .begin = at(2'001'000),
            .end = at(3'234'567),
            .failed = true});
  rank.count(TraceCounter::sharded, 4, at(1'999'995));
  rank.count(TraceCounter::unsharded_bytes, 64, at(2'000'000));
  rank.count(TraceCounter::sharded, -1, at(2'000'100));
  rank.count(TraceCounter::gathering, 1, at(2'000'100));
  rank.count(TraceCounter::gradient_bytes, 32, at(2'000'200));
  CHECK(written(trace) == R"({"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","name":"process_name","pid":1,"tid":1000,"args":{"name":"rank 0"}},
{"ph":"M","name":"process_sort_index","pid":1,"tid":1000,"args":{"sort_index":0}},
{"ph":"M","name":"process_name","pid":2,"tid":2000,"args":{"name":"rank 1"}},
{"ph":"M","name":"process_sort_index","pid":2,"tid":2000,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":2,"tid":2000,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":2,"tid":2000,"args":{"sort_index":0}},
{"ph":"M","name":"thread_name","pid":2,"tid":2001,"args":{"name":"waits"}},
{"ph":"M","name":"thread_sort_index","pid":2,"tid":2001,"args":{"sort_index":1}},
{"ph":"X","name":"wait for the gather","pid":2,"tid":2001,"ts":0.005,"dur":0.001,"args":{"ticket":7,"bucket":3}},
{"ph":"X","name":"forward block.0","pid":2,"tid":2000,"ts":1.005,"dur":1233.567,"args":{"failed":true}},
{"ph":"C","name":"buckets","pid":2,"ts":0.000,"args":{"sharded":4,"gathering":0,"in_use":0,"ready":0,"failed":0}},
{"ph":"C","name":"buckets","pid":2,"ts":0.105,"args":{"sharded":3,"gathering":1,"in_use":0,"ready":0,"failed":0}},
{"ph":"C","name":"unsharded bytes","pid":2,"ts":0.005,"args":{"bytes":64}},
{"ph":"C","name":"gradient bytes","pid":2,"ts":0.205,"args":{"bytes":32}}
],"otherData":{"records":7,"records_dropped":0}}
)");
}

TEST_CASE("a trace without records is a file, too") {
  CHECK(written(Trace()) ==
        "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n],\"otherData\":{\"records\":0,"
        "\"records_dropped\":0}}\n");
}

TEST_CASE("names are escaped as JSON wants it") {
  CHECK(name_of("a \"b\" \\ c") == R"("a \"b\" \\ c")");
  CHECK(name_of("a\nb\tc\x1f") == R"("a\u000ab\u0009c\u001f")");
  CHECK(name_of(std::string_view("a\0b", 3)) == R"("a\u0000b")");
  CHECK(name_of("größe 層 𝛼 /\x7f") == "\"größe 層 𝛼 /\x7f\"");
}

TEST_CASE("what is not UTF-8 is replaced, the rest of the name stays") {
  CHECK(name_of("a\xff\xc3z") == R"("a\ufffd\ufffdz")");
  CHECK(name_of("\xc3\xb6\xc3") == "\"ö\\ufffd\"");
  CHECK(name_of("\xc0\xaf") == R"("\ufffd\ufffd")");                      // an overlong slash
  CHECK(name_of("\xe0\x80\xaf") == R"("\ufffd\ufffd\ufffd")");            // likewise
  CHECK(name_of("\xed\xa0\x80") == R"("\ufffd\ufffd\ufffd")");            // half of a pair
  CHECK(name_of("\xf4\x90\x80\x80") == R"("\ufffd\ufffd\ufffd\ufffd")");  // above U+10FFFF
  CHECK(name_of("\xe2\x82") == R"("\ufffd\ufffd")");                      // the end is missing
}

TEST_CASE("what was dropped is said in the name of its rank and at the end") {
  Trace trace(2);
  for (int i = 0; i < 5; ++i) {
    trace.of_rank(0).add({.what = "update", .begin = at(i), .end = at(i)});
  }
  trace.of_rank(1).add({.what = "update", .begin = at(0), .end = at(0)});
  const std::string text = written(trace);
  CHECK(text.find("\"name\":\"rank 0 (the last 3 records were dropped)\"") != std::string::npos);
  CHECK(text.find("\"name\":\"rank 1\"") != std::string::npos);
  CHECK(text.ends_with("\"otherData\":{\"records\":3,\"records_dropped\":3}}\n"));
}

}  // namespace
}  // namespace troupe::test
