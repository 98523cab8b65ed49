#include "troupe/comm/process/world_event.hpp"

#include "troupe/comm/process/position.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace troupe::test {
namespace {

const Failure failure{.code = ErrorCode::mismatch,
                      .text = "rank 1 launched another collective",
                      .rank = 1,
                      .ticket = 17,
                      .bucket = 3};

const LoggedCall call{Collective::reduce, 17, 2, 3, "block.1", DType::bf16, 1024, 1};

const GroupName some_group{{0, 2, 3}, 1};
const GroupName other_group{{2}, 0};

std::vector<WorldEvent> one_of_each_kind() {
  Suspicion suspicion;
  suspicion.kind = Suspicion::Kind::connection;
  suspicion.rank = 2;
  suspicion.group = some_group;
  suspicion.turn = 41;
  suspicion.call = call;
  suspicion.waited_ms = 2015;
  suspicion.text = "connection reset";
  suspicion.peer = 3;
  const std::vector<LaunchCount> counts{{some_group, 12}, {other_group, 0}};
  return {JoinedEvent{1, 4, "pid 41 on host7", ~0ULL},
          FailedEvent{2, failure},
          SuspectedEvent{1, suspicion},
          DepartedEvent{3, "after step 5", counts},
          DiedEvent{2, "is gone", 7},
          ArrivedEvent{0, 3, std::string("a\0b", 3)},
          AbsentEvent{1, "by an exception"},
          ClosedEvent{4, failure},
          EndedEvent{{.code = ErrorCode::network, .text = ""}}};
}

RankPosition some_position() {
  RankPosition position;
  position.rank = 2;
  GroupPosition group;
  group.group = some_group;
  group.launched = 7;
  group.launches = {{5, call, LaunchStage::ended}, {6, call, LaunchStage::begun}};
  position.groups.push_back(group);
  GroupPosition other;
  other.group = other_group;
  position.groups.push_back(other);
  return position;
}

TEST_CASE("a text that no store would take is cut, and said to be") {
  constexpr std::size_t bytes_max = std::size_t{64} << 10;
  for (const std::size_t size : {bytes_max, bytes_max + 1, std::size_t{3} << 20}) {
    CAPTURE(size);
    const auto event = decode_event(encode(FailedEvent{1, {.text = std::string(size, 'x')}}));
    REQUIRE(event);
    const std::string& text = std::get<FailedEvent>(*event).failure.text;
    CHECK(text.size() == bytes_max);
    CHECK(text.ends_with("x […]") == (size > bytes_max));
    CHECK(text.starts_with("xxx"));
  }
}

TEST_CASE("events and positions come back as they were") {
  const std::vector<WorldEvent> events = one_of_each_kind();
  REQUIRE(events.size() == std::variant_size_v<WorldEvent>);
  for (std::size_t kind = 0; kind < events.size(); ++kind) {
    CAPTURE(kind);
    CHECK(events[kind].index() == kind);
    CHECK(decode_event(encode(events[kind])) == events[kind]);
  }
  CHECK(decode_position(encode(some_position())) == some_position());
}

/// Refused, or what it says is what it holds: nothing is guessed or left out.
template <class Decode>
void check_damage(const std::string& good, const std::string& bad, Decode decode) {
  const auto value = decode(bad);
  CHECK((!value || (bad != good && encode(*value) == bad)));
}

template <class Decode>
void damage_everywhere(const std::string& good, Decode decode) {
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK_FALSE(decode(good.substr(0, size)));
  }
  CHECK_FALSE(decode(good + '\0'));
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      check_damage(good, bad, decode);
    }
  }
}

TEST_CASE("what is cut short is refused, and damage never passes for something else") {
  for (const WorldEvent& event : one_of_each_kind()) {
    damage_everywhere(encode(event), [](const std::string& bytes) { return decode_event(bytes); });
  }
  damage_everywhere(encode(some_position()),
                    [](const std::string& bytes) { return decode_position(bytes); });
}

TEST_CASE("another version is refused") {
  std::string entry = encode(WorldEvent{DiedEvent{2, "is gone"}});
  entry[0] = 2;
  CHECK_FALSE(decode_event(entry));
  entry[0] = 0;
  CHECK_FALSE(decode_event(entry));
}

}  // namespace
}  // namespace troupe::test
