#include "troupe/comm/call_check.hpp"

#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <string>
#include <vector>

namespace troupe {
namespace {

CollectiveCall reduce_call() {
  return {.op = Collective::reduce,
          .ticket = 17,
          .bucket = 3,
          .label = "block.1",
          .numel = 1024,
          .root = 1};
}

TEST_CASE("a call is described by what names it") {
  CHECK(describe(reduce_call()) == "reduce of bucket 3 'block.1' (ticket 17)");
  CHECK(describe({.op = Collective::all_reduce, .ticket = 4, .label = "gradient norm"}) ==
        "all_reduce 'gradient norm' (ticket 4)");
  CHECK(describe({.op = Collective::barrier, .ticket = 5}) == "barrier (ticket 5)");
  CHECK(describe_exactly(reduce_call()) ==
        "reduce of bucket 3 'block.1' (ticket 17), 1024 fp32 elements, root 1");
}

TEST_CASE("ranks are listed in words") {
  CHECK(describe_ranks(std::array{2}) == "rank 2");
  CHECK(describe_ranks(std::array{0, 2}) == "ranks 0 and 2");
  CHECK(describe_ranks(std::array{0, 1, 5}) == "ranks 0, 1 and 5");
}

TEST_CASE("calls that agree are no mismatch, whatever their buffers and labels") {
  std::vector<CollectiveCall> calls(3, reduce_call());
  float value = 0;
  calls[1].input = &value;
  calls[2].label = "something else";
  CHECK_FALSE(compare_calls(calls, std::array{0, 1, 2}));
  CHECK_FALSE(compare_calls({}, {}));
  // A root means something to rooted collectives only.
  std::vector<CollectiveCall> gathers(2, {.op = Collective::all_gather, .ticket = 1});
  gathers[1].root = 1;
  CHECK_FALSE(compare_calls(gathers, std::array{0, 1}));
}

TEST_CASE("each kind of mismatch is named, with both sides as different texts") {
  struct Kind {
    std::string difference;
    CollectiveCall call;
  };
  std::vector<Kind> kinds;
  const auto add = [&kinds](const std::string& difference, auto change) {
    kinds.push_back({difference, reduce_call()});
    change(kinds.back().call);
  };
  add("operation", [](CollectiveCall& call) { call.op = Collective::all_reduce; });
  add("ticket", [](CollectiveCall& call) { call.ticket = 18; });
  add("bucket", [](CollectiveCall& call) { call.bucket = 4; });
  add("size", [](CollectiveCall& call) { call.numel = 1023; });
  add("dtype", [](CollectiveCall& call) { call.dtype = DType::bf16; });
  add("root", [](CollectiveCall& call) { call.root = 0; });
  add("runtime", [](CollectiveCall& call) { call.runtime = 2; });
  add("runtime", [](CollectiveCall& call) { call.runtime = 3; });
  add("ticket and bucket", [](CollectiveCall& call) {
    call.ticket = 18;
    call.bucket = no_bucket;
  });
  for (const Kind& kind : kinds) {
    std::vector<CollectiveCall> calls(4, reduce_call());
    calls[2] = kind.call;
    const Failure failure =
        compare_calls(calls, std::array{10, 11, 12, 13}).value_or(Failure{.text = "none"});
    CHECK(describe_exactly(kind.call) != describe_exactly(reduce_call()));
    CHECK(failure.text == "rank 12 launched another collective than ranks 10, 11 and 13 (" +
                              kind.difference + "): expected " + describe_exactly(reduce_call()) +
                              ", actual " + describe_exactly(kind.call));
    CHECK(failure.code == ErrorCode::mismatch);
    CHECK(failure.rank == 12);
    CHECK(failure.ticket == 17);
    CHECK(failure.bucket == 3);
  }
}

TEST_CASE("what most ranks launched is expected, and half against half the lowest rank's") {
  CollectiveCall other = reduce_call();
  other.bucket = 4;
  const CollectiveCall call = reduce_call();
  const auto rank_at_fault = [](std::vector<CollectiveCall> calls) {
    std::vector<int> ranks(calls.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return compare_calls(calls, ranks).value_or(Failure{}).rank;
  };
  CHECK(rank_at_fault({other, call, call}) == 0);
  CHECK(rank_at_fault({call, call, other}) == 2);
  CHECK(rank_at_fault({call, other}) == 1);
  CHECK(rank_at_fault({call, other, other, call}) == 1);
  CHECK(rank_at_fault({other, call, other, call, call}) == 0);
}

TEST_CASE("overlaps are refused unless they are what in place means") {
  std::array<float, 64> memory{};
  const auto check = [&memory](Collective op, int input, int output, int rank) {
    const CollectiveCall call{.op = op,
                              .ticket = 1,
                              .input = memory.data() + input,
                              .output = memory.data() + output,
                              .numel = 8};
    return !check_call(call, rank, 3).has_value();
  };
  for (int rank = 0; rank < 3; ++rank) {
    const int own = 8 * rank;
    for (const int shift : {-7, -1, 1, 7}) {
      CHECK_FALSE(check(Collective::all_gather, 10 + own + shift, 10, rank));
      CHECK_FALSE(check(Collective::reduce_scatter, 10, 10 + own + shift, rank));
      CHECK_FALSE(check(Collective::all_reduce, 10, 10 + shift, rank));
      CHECK_FALSE(check(Collective::reduce, 10, 10 + shift, 0));
      CHECK_FALSE(check(Collective::broadcast, 10, 10 + shift, 0));
    }
    CHECK(check(Collective::all_gather, 10 + own, 10, rank));
    CHECK(check(Collective::reduce_scatter, 10, 10 + own, rank));
    CHECK(check(Collective::all_reduce, 10, 10, rank));
    CHECK(check(Collective::all_gather, 2, 10, rank));   // ends where the output begins
    CHECK(check(Collective::all_gather, 34, 10, rank));  // begins where it ends
    CHECK(check(Collective::reduce_scatter, 10, 2, rank));
    CHECK(check(Collective::reduce_scatter, 10, 34, rank));
  }
  // Only the root has both.
  CHECK(check(Collective::reduce, 10, 11, 1));
  CHECK(check(Collective::broadcast, 10, 11, 1));
}

}  // namespace
}  // namespace troupe
