// The disk is full when a rank writes its trace.
#include "fault_checks.hpp"
#include "troupe/test/support/test_folder.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

namespace troupe::test {
namespace {

using std::chrono::seconds;

TEST_CASE("a disk that is full when a rank writes its trace") {
  const TestFolder folder;
  const std::string disk = folder.path().string();
  // A disk of one page, which only this rank sees.
  const std::vector<std::string> command{
      "/usr/bin/unshare",
      "--mount",
      "/bin/sh",
      "-c",
      "mount -t tmpfs -o size=4k none " + disk + " && exec \"$@\"",
      "sh"};
  ChildProcess probe({.command = {"/usr/bin/unshare", "--mount", "/bin/sh", "-c",
                                  "mount -t tmpfs -o size=4k none " + disk}});
  if (probe.wait(seconds{10}) != 0) {
    skip("a mount namespace, for the full disk");
  }
  FaultWorld world(3);
  world.of(1).trace = disk + "/trace.json";
  world.start_by(1, command);
  world.start();
  const auto ends = world.wait(limit);
  check_others(ends, {.culprit = 1,
                      .ticket = false,
                      .code = "storage",
                      .contains = "cannot write the trace to " + disk + "/trace.json"});
  check_culprit(ends, 1, 1);
}

}  // namespace
}  // namespace troupe::test
