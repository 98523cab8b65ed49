#include "troupe/runtime/processes/failure_report.hpp"

#include "troupe/comm/store/store.hpp"
#include "troupe/runtime/processes/host.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <unistd.h>

namespace troupe::test {
namespace {

LaunchRecord record(Ticket ticket, Collective op, BucketId bucket, std::string label) {
  LaunchRecord record;
  record.ticket = ticket;
  record.op = op;
  record.bucket = bucket;
  record.numel = 64;
  record.label = std::move(label);
  return record;
}

LaunchRecord gather(Ticket ticket, BucketId bucket = 1) {
  return record(ticket, Collective::all_gather, bucket, "block." + std::to_string(bucket));
}

/// A rank that has launched gathers `first` to `last`, of which the last `open` are in flight.
LaunchDump dump_of(int rank, Ticket first, Ticket last, Ticket open = 0) {
  LaunchDump dump;
  dump.rank = rank;
  for (Ticket ticket = first; ticket <= last; ++ticket) {
    dump.launches.push_back({gather(ticket), ticket + open > last ? "in flight" : "done"});
  }
  return dump;
}

LaunchDump full_dump() {
  LaunchDump dump = dump_of(1, 3, 4);
  dump.failure = {.code = ErrorCode::mismatch,
                  .text = "rank 2 launched \"another\" collective\n",
                  .rank = 2,
                  .ticket = 6,
                  .bucket = 3};
  LaunchRecord other = record(5, Collective::reduce, no_bucket, "of the trainer");
  other.dtype = DType::bf16;
  other.root = 2;
  other.channel = Channel::reduce;
  other.axis = GroupAxis::regather;
  other.runtime = 2;
  dump.launches.push_back({other, "failed"});
  return dump;
}

TEST_CASE("a dump comes back from its JSON as it was") {
  CHECK(launch_dump(to_json(full_dump())) == full_dump());
  LaunchDump empty;
  empty.failure = {.code = ErrorCode::network, .text = "", .rank = -1};
  CHECK(launch_dump(to_json(empty)) == empty);
  CHECK(to_json(empty).find("\"bucket\": null") != std::string::npos);
}

TEST_CASE("damaged JSON is no dump, or another one, and never more") {
  const std::string good = to_json(full_dump());
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK_FALSE(launch_dump(good.substr(0, size)));
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = '7';
    const auto dump = launch_dump(bad);
    CHECK((!dump || launch_dump(to_json(*dump)) == dump));
  }
  CHECK_FALSE(launch_dump("{}"));
  CHECK_FALSE(launch_dump("[1]"));
}

TEST_CASE("a dump with texts of any length fits into a value of the store") {
  LaunchDump dump = full_dump();
  CHECK(shortened(dump) == dump);
  dump.failure.text = std::string(5'000'000, '\1');  // six characters each in JSON
  dump.launches.resize(64, dump.launches.front());
  for (LaunchDump::Launch& launch : dump.launches) {
    launch.record.label = std::string(100'000, '\1');
  }
  CHECK(to_json(shortened(dump)).size() < StoreLimits{}.value_bytes);
  CHECK(launch_dump(to_json(shortened(dump))) == shortened(dump));
}

TEST_CASE("a dump is written to a folder that is made, or the path is named") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("troupe-dump-" + std::to_string(::getpid()));
  REQUIRE(write_failure(folder / "a" / "b", full_dump()).ok());
  std::ifstream file(folder / "a" / "b" / "failure-1.json");
  std::stringstream text;
  text << file.rdbuf();
  CHECK(launch_dump(text.str()) == full_dump());
  std::ofstream(folder / "file") << "x";
  const auto refused = write_failure(folder / "file", full_dump());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.failure().code == ErrorCode::storage);
  CHECK(refused.failure().text.find((folder / "file" / "failure-1.json").string()) !=
        std::string::npos);
  std::filesystem::remove_all(folder);
}

// ---- the summary --------------------------------------------------------------------------------

TEST_CASE("a launch that is missing is named, and the rank, and its last one") {
  CHECK(
      summarize({{0, dump_of(0, 1, 13, 1)}, {1, dump_of(1, 1, 13, 1)}, {2, dump_of(2, 1, 12)}},
                3) ==
      "of ranks 0, 1 and 2, ticket 13 all_gather bucket 1 'block.1' numel 64 fp32 is missing on "
      "rank 2; rank 2 launched last ticket 12 all_gather bucket 1 'block.1' numel 64 fp32 (done)");
  CHECK(summarize({{0, dump_of(0, 1, 1, 1)}, {1, dump_of(1, 1, 0)}}, 2) ==
        "of ranks 0 and 1, ticket 1 all_gather bucket 1 'block.1' numel 64 fp32 is missing on rank "
        "1; rank 1 launched nothing");
}

TEST_CASE("where launches differ, the first is shown as each rank has it") {
  LaunchDump other = dump_of(2, 1, 9);
  other.launches[5].record = gather(6, 2);
  other.launches[7].record = gather(8, 3);
  const std::string text = summarize(
      {{0, dump_of(0, 1, 9)}, {1, dump_of(1, 1, 9)}, {2, other}, {3, dump_of(3, 1, 5)}}, 4);
  CHECK(text ==
        "of ranks 0, 1, 2 and 3, the ranks part at ticket 6: ranks 0 and 1 launched ticket 6 "
        "all_gather bucket 1 'block.1' numel 64 fp32; rank 2 launched ticket 6 all_gather bucket 2 "
        "'block.2' numel 64 fp32; rank 3 nothing");
}

TEST_CASE("what parts or is missing first counts") {
  LaunchDump other = dump_of(1, 1, 9);
  other.launches[7].record = gather(8, 2);
  CHECK(summarize({{0, dump_of(0, 1, 9)}, {1, other}, {2, dump_of(2, 1, 6)}}, 3)
            .find("ticket 7 all_gather bucket 1 'block.1' numel 64 fp32 is missing on rank 2") !=
        std::string::npos);
}

TEST_CASE("what a rank no longer tells of is not missing") {
  CHECK(
      summarize({{0, dump_of(0, 1, 70, 1)}, {1, dump_of(1, 7, 70, 2)}}, 2) ==
      "of ranks 0 and 1, all have launched the same up to ticket 70; the first that has not ended "
      "is ticket 69 all_gather bucket 1 'block.1' numel 64 fp32, on rank 1");
}

TEST_CASE("ranks that have not answered are named") {
  CHECK(summarize({{1, dump_of(1, 1, 2)}}, 3) ==
        "nothing was heard of ranks 0 and 2; of rank 1, all have launched the same up to ticket 2");
  // Rank 2 waits in ticket 12 for rank 1, as rank 0 does, which has launched one more.
  CHECK(
      summarize({{0, dump_of(0, 1, 13, 2)}, {2, dump_of(2, 1, 12, 1)}}, 3) ==
      "nothing was heard of rank 1; of ranks 0 and 2, all have launched the same up to ticket 12, "
      "and rank 0 also ticket 13 all_gather bucket 1 'block.1' numel 64 fp32; the first that has "
      "not ended is ticket 12 all_gather bucket 1 'block.1' numel 64 fp32, on ranks 0 and 2");
  CHECK(summarize({}, 3) == "no rank has told what it launched");
}

// ---- the host -----------------------------------------------------------------------------------

TEST_CASE("a host knows its address towards another, and what is loopback") {
  CHECK(address_towards("127.0.0.1", 80).value() == "127.0.0.1");
  CHECK(address_towards("no.such.host.invalid", 80).failure().code == ErrorCode::network);
  CHECK(address_towards("no.such.host.invalid", 80).failure().text.find("no.such.host.invalid") !=
        std::string::npos);
  CHECK(is_loopback("localhost"));
  CHECK(is_loopback("127.0.1.1"));
  CHECK(is_loopback("::1"));
  CHECK_FALSE(is_loopback("10.0.0.1"));
  CHECK_FALSE(is_loopback("host7"));
  CHECK(process_name().starts_with("pid " + std::to_string(::getpid()) + " on "));
}

}  // namespace
}  // namespace troupe::test
