#include "troupe/runtime/rank_statement.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

RankStatement with(std::vector<RuntimeStatement> runtimes, std::string refusal = {}) {
  return {.refusal = std::move(refusal), .runtimes = std::move(runtimes)};
}

std::string text_of(const std::vector<RankStatement>& statements, int rank) {
  const auto failure = verdict(statements);
  if (!failure) {
    return "";
  }
  CHECK(failure->rank == rank);
  CHECK(failure->code == ErrorCode::peer_failed);
  return failure->text;
}

TEST_CASE("a statement survives its way as a text") {
  for (const RankStatement& statement :
       {with({}), with({{1, 2, 3, true}}), with({{1, ~std::uint64_t{0}, 3}, {4, 5, 6}}),
        with({{7, 8, 9}}, "stream 'a b': 12\nlines"), with({}, "3 of 4")}) {
    CHECK(decode(encode(statement)) == statement);
  }
}

TEST_CASE("ranks that have made the same updates go on") {
  CHECK(text_of({with({})}, -1) == "");
  CHECK(text_of({with({{3, 17, 2}}), with({{3, 17, 1}}), with({{3, 17, 2}})}, -1) == "");
}

TEST_CASE("what differs is named, with the ranks of each side") {
  const std::string cannot = "the step cannot be given up: ";
  CHECK(text_of({with({{3, 1, 0}}), with({{4, 2, 0}}), with({{3, 1, 0}}), with({{5, 3, 0}})}, 1) ==
        cannot +
            "ranks do not stand behind the same update (initialisation is one): 3 on ranks 0 and "
            "2, 4 on rank 1, 5 on rank 3");
  CHECK(text_of({with({{3, 1, 0}, {2, 1, 0}}), with({{3, 1, 0}, {1, 2, 0}})}, 1) ==
        cannot +
            "ranks do not stand behind the same update of runtime 2 (initialisation is one): 1 on "
            "rank 1, 2 on rank 0");
  CHECK(text_of({with({{3, 1, 0}}), with({{3, 1, 0}}), with({{3, 2, 0}})}, 2) ==
        cannot + "rank 2 has other buckets than rank 0, or has updated other ones");
  CHECK(text_of({with({{3, 1, 0}}), with({})}, 1) ==
        cannot + "ranks have different numbers of runtimes: 0 on rank 1, 1 on rank 0");
}

TEST_CASE("a rank that cannot go on comes before what differs") {
  CHECK(text_of({with({{3, 1, 0}}), with({{4, 1, 0}}, "no disk"), with({}, "no light")}, 1) ==
        "the step cannot be given up: rank 1: no disk");
}

TEST_CASE("the steps of all are those of the rank that has come farthest") {
  const std::vector<RankStatement> statements{with({{1, 1, 3}, {1, 1, 9}}),
                                              with({{1, 1, 4}, {1, 1, 8}})};
  CHECK(common_steps(statements, 0) == 4);
  CHECK(common_steps(statements, 1) == 9);
}

TEST_CASE("a save goes on if every rank still has it") {
  const std::vector<RankStatement> statements{with({{1, 1, 3, true}, {1, 1, 9, true}}),
                                              with({{1, 1, 4, true}, {1, 1, 8, false}})};
  CHECK(all_save(statements, 0));
  CHECK_FALSE(all_save(statements, 1));
}

}  // namespace
}  // namespace troupe::test
