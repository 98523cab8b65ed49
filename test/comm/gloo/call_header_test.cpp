#include "troupe/comm/gloo/call_header.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace troupe::test {
namespace {

CollectiveCall some_call() {
  CollectiveCall call;
  call.op = Collective::all_gather;
  call.ticket = 17;
  call.runtime = 2;
  call.bucket = 3;
  call.label = "block.1";
  call.dtype = DType::bf16;
  call.numel = std::int64_t{1} << 40;
  return call;
}

/// The call, and others that each differ from it in one thing that ranks have to agree on.
std::vector<CollectiveCall> different_calls() {
  std::vector<CollectiveCall> calls(9, some_call());
  calls[1].op = Collective::reduce_scatter;
  calls[2].ticket = 18;
  calls[3].runtime = 1;
  calls[4].bucket = no_bucket;
  calls[5].dtype = DType::f32;
  calls[6].numel = 5;
  calls[7].op = Collective::broadcast;
  calls[8].op = Collective::broadcast;
  calls[8].root = 1;
  return calls;
}

TEST_CASE("calls that differ have headers that differ, and share no slot") {
  std::set<CallHeader> headers;
  std::set<std::uint64_t> slots;
  for (const CollectiveCall& call : different_calls()) {
    headers.insert(header_of(call));
    for (const Lane lane : {Lane::parts, Lane::results}) {
      for (const std::uint64_t turn : {0U, 1U}) {
        slots.insert(first_slot(header_of(call), turn, lane));
      }
    }
  }
  slots.insert({header_slot(0), header_slot(1)});
  CHECK(headers.size() == 9);
  CHECK(slots.size() == 9 * 2 * 2 + 2);
}

TEST_CASE("a label, buffers, and the root where there is none make no difference") {
  CollectiveCall other = some_call();
  float value = 0;
  other.label = "another";
  other.input = &value;
  other.output = &value;
  other.root = 1;
  CHECK(header_of(other) == header_of(some_call()));
}

TEST_CASE("a header tells the call but its label") {
  for (const CollectiveCall& call : different_calls()) {
    LoggedCall expected = logged(call);
    expected.label.clear();
    CHECK(call_of(header_of(call)) == expected);
  }
}

}  // namespace
}  // namespace troupe::test
