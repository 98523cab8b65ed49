/// What `World::join` refuses before anything is connected to.
#include "troupe/runtime/world.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <string>

namespace troupe::test {
namespace {

std::string refusal(const std::function<void(JoinOptions&, WorldOptions&)>& change) {
  JoinOptions join;
  join.world_size = 2;
  join.store_port = 1;
  WorldOptions options;
  change(join, options);
  try {
    static_cast<void>(World::join(join, options));
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_configuration);
    return error.what();
  }
  return "";
}

TEST_CASE("options that cannot be used are refused by name") {
  using std::chrono::milliseconds;
  CHECK(refusal([](JoinOptions&, WorldOptions&) {}) == "");
  CHECK(refusal([](JoinOptions& join, WorldOptions&) { join.world_size = 0; }) ==
        "JoinOptions::world_size is 0; expected 1 to 65536");
  CHECK(refusal([](JoinOptions& join, WorldOptions&) { join.rank = 2; }) ==
        "JoinOptions::rank is 2; expected 0 to 1");
  CHECK(refusal([](JoinOptions& join, WorldOptions&) { join.rank = -1; }) ==
        "JoinOptions::rank is -1; expected 0 to 1");
  CHECK(refusal([](JoinOptions& join, WorldOptions&) { join.store_port = 0; }) ==
        "JoinOptions::store_port is 0; expected the port of the store, the same on all ranks");
  CHECK(refusal([](JoinOptions& join, WorldOptions&) { join.silence_limit = milliseconds{0}; }) ==
        "JoinOptions::join_timeout and silence_limit are 300000 and 0 ms; expected more than 0 and "
        "at most a year");
  CHECK(refusal([](JoinOptions& join, WorldOptions&) {
          join.join_timeout = milliseconds::max();
        }).starts_with("JoinOptions::join_timeout and silence_limit are 9223372036854775807 and "));
  CHECK(refusal([](JoinOptions& join, WorldOptions&) {
          join.silence_limit = milliseconds::max();
        }).ends_with(" and 9223372036854775807 ms; expected more than 0 and at most a year"));
  CHECK(refusal([](JoinOptions&, WorldOptions& options) {
          options.timeout = milliseconds{0};
        }).starts_with("WorldOptions::timeout is 0 ms"));
  CHECK(refusal([](JoinOptions& join, WorldOptions&) {
          join.world_size = 1;
          join.store_port = 0;
        }) == "");
}

TEST_CASE("a rank that is alone needs no network") {
  int ran = 0;
  World::join(JoinOptions{}).run([&](World& world) {
    CHECK(world.size() == 1);
    CHECK_FALSE(world.stop_requested());
    ++ran;
  });
  CHECK(ran == 1);
  CHECK_THROWS_WITH_AS(
      World::join(JoinOptions{}, {.on_failure = [](const std::string&) {}}).run([](World&) {
        throw std::runtime_error("bad batch");
      }),
      "rank 0 failed: bad batch", Error);
}

TEST_CASE("a store that cannot be reached is named") {
  JoinOptions join;
  join.rank = 1;
  join.world_size = 2;
  join.store_port = 1;  // nobody listens there
  join.join_timeout = std::chrono::milliseconds{100};
  try {
    World::join(join).run([](World&) { FAIL("joined"); });
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("the store at 127.0.0.1 port 1") == 0);
  }
}

}  // namespace
}  // namespace troupe::test
