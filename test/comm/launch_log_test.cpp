#include "troupe/comm/process/launch_log.hpp"

#include "troupe/comm/call_check.hpp"

#include <doctest/doctest.h>

#include <string>

namespace troupe::test {
namespace {

CollectiveCall gather(Ticket ticket, const char* label = "block.1") {
  return {.op = Collective::all_gather,
          .ticket = ticket,
          .runtime = 1,
          .bucket = 3,
          .label = label,
          .dtype = DType::bf16,
          .numel = 64};
}

TEST_CASE("a logged call keeps its label and says the same as the call") {
  std::string label = "a label too long for its own storage to be inside of the string";
  const CollectiveCall call{.op = Collective::broadcast,
                            .ticket = 7,
                            .runtime = 2,
                            .bucket = 1,
                            .label = label.c_str(),
                            .dtype = DType::f32,
                            .numel = 5,
                            .root = 2};
  const std::string text = describe_exactly(call);
  const LoggedCall kept = logged(call);
  label.assign(label.size(), 'x');
  CHECK(describe_exactly(kept.view()) == text);
}

TEST_CASE("turns count from 0, and the earliest launch begun and not ended is awaited") {
  LaunchLog log({{0, 1}, 0});
  CHECK_FALSE(log.awaiting());
  CHECK(log.launch(gather(1)) == 0);
  CHECK(log.launch(gather(2)) == 1);
  CHECK(log.launch(gather(3)) == 2);
  CHECK_FALSE(log.awaiting());
  log.begin(0);
  log.begin(1);
  CHECK(log.awaiting()->turn == 0);
  log.end(0);
  CHECK(log.awaiting()->turn == 1);
  CHECK(log.awaiting()->call == logged(gather(2)));
  log.end(1);
  CHECK_FALSE(log.awaiting());
  log.end(2);    // dropped by its stream
  log.begin(2);  // a late word changes nothing
  CHECK_FALSE(log.awaiting());
}

TEST_CASE("launches that have ended are forgotten, those that have not are kept") {
  LaunchLog log({{0, 1}, 1});
  const auto many = static_cast<Ticket>(LaunchLog::kept) + 5;
  for (Ticket ticket = 1; ticket <= many; ++ticket) {
    log.launch(gather(ticket));
  }
  CHECK(log.position().launches.size() == many);  // none has ended
  log.begin(0);
  for (std::uint64_t turn = 1; turn < many; ++turn) {
    log.end(turn);
  }
  log.launch(gather(many + 1));
  CHECK(log.position().launches.front().turn == 0);  // it is awaited, and nothing behind it goes
  log.end(0);
  log.launch(gather(many + 2));
  const GroupPosition position = log.position();
  CHECK(position.group == GroupName{{0, 1}, 1});
  CHECK(position.launched == many + 2);
  REQUIRE(position.launches.size() == LaunchLog::kept);
  for (std::size_t index = 0; index < position.launches.size(); ++index) {
    const LoggedLaunch& launch = position.launches[index];
    CHECK(launch.turn == many + 2 - LaunchLog::kept + index);
    CHECK(launch.call.ticket == launch.turn + 1);
  }
  CHECK(position.launches.back().stage == LaunchStage::launched);
  CHECK(position.launches.front().stage == LaunchStage::ended);
}

TEST_CASE("a position tells the earliest of more launches than it takes") {
  LaunchLog log({{0, 1}, 0});
  for (Ticket ticket = 1; ticket <= LaunchLog::told_max + 10; ++ticket) {
    log.launch(gather(ticket));
  }
  const GroupPosition position = log.position();
  CHECK(position.launched == LaunchLog::told_max + 10);
  REQUIRE(position.launches.size() == LaunchLog::told_max);
  CHECK(position.launches.front().turn == 0);
}

}  // namespace
}  // namespace troupe::test
