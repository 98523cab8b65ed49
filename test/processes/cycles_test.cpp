// Worlds of processes that come and go leave nothing behind.
#include "fault_world.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>

namespace troupe::test {
namespace {

/// The line that begins with `begin`, without that.
std::string after(const std::string& text, const std::string& begin) {
  const auto at = text.find(begin);
  return at == std::string::npos
             ? "no line '" + begin + "'"
             : text.substr(at + begin.size(), text.find('\n', at) - at - begin.size());
}

TEST_CASE("500 worlds, one after the other, leave no thread, descriptor or shared memory") {
  const std::string before = what_is_held();
  FaultWorld world(2);
  world.all([](RankOptions& options) {
    options.steps = 1;
    options.cycles = 500;
  });
  world.start();
  const auto ends = world.wait(std::chrono::minutes{5});
  for (const RankEnd& end : ends) {
    CAPTURE(end.err);
    CHECK(end.status == 0);
    // The tenth world is where it is measured first: libraries keep some of what they use.
    CHECK(after(end.out, "at first ") == after(end.out, "at last "));
    CHECK(after(end.out, "at last ").find("descriptors") != std::string::npos);
  }
  CHECK(after(before, "threads, ") == after(what_is_held(), "threads, "));
}

}  // namespace
}  // namespace troupe::test
