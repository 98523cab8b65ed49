// Two hosts, made of network namespaces, and the link between them cut.
#include "fault_world.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Runs a line of shell script.
bool shell(const std::string& line) {
  ChildProcess run({.command = {"/bin/sh", "-c", line}});
  return run.wait(seconds{20}) == 0;
}

/// Two namespaces of this test's own, joined by a veth pair; gone with the object.
class TwoHosts {
 public:
  TwoHosts() {
    made_ = shell("ip netns add " + name(0) + " && ip netns add " + name(1) + " && ip link add " +
                  link(0) + " netns " + name(0) + " type veth peer name " + link(1) + " netns " +
                  name(1));
    for (const int host : {0, 1}) {
      made_ = made_ && shell("ip -n " + name(host) + " addr add " + address(host) + "/24 dev " +
                             link(host) + " && ip -n " + name(host) + " link set lo up && ip -n " +
                             name(host) + " link set " + link(host) + " up && ip -n " + name(host) +
                             " addr add " + address6(host) + "/64 nodad dev " + link(host));
    }
  }
  ~TwoHosts() { static_cast<void>(shell("ip netns del " + name(0) + "; ip netns del " + name(1))); }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  bool made() const { return made_; }
  static std::string address(int host) { return "10.77.31." + std::to_string(host + 1); }
  static std::string address6(int host) { return "fd77:31::" + std::to_string(host + 1); }
  std::vector<std::string> enter(int host) const {
    return {"/usr/bin/env", "ip", "netns", "exec", name(host)};
  }
  bool set_link(const std::string& state) const {
    return shell("ip -n " + name(0) + " link set " + link(0) + " " + state);
  }

 private:
  std::string name(int host) const {
    return "troupe_" + std::to_string(::getpid()) + "_" + std::to_string(host);
  }
  std::string link(int host) const { return "v" + std::to_string(host); }

  bool made_ = false;
};

TEST_CASE("a link that is cut: both sides end, and each names a rank of the other") {
  std::optional<TwoHosts> made(std::in_place);
  if (!made->made()) {
    made.reset();
    skip("network namespaces, for the cut link");
  }
  const TwoHosts& hosts = *made;
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    REQUIRE(hosts.set_link("up"));
    FaultWorld world(ranks);
    world.all([](RankOptions& options) {
      options.steps = 1'000'000;
      options.timeout = milliseconds{2000};
    });
    for (int rank = 0; rank < ranks; ++rank) {
      const int host = rank % 2;
      world.start_by(rank, hosts.enter(host));
      world.set(rank, "MASTER_ADDR", TwoHosts::address(0));
      world.set(rank, "TROUPE_ADDRESS", TwoHosts::address(host));
    }
    world.start();
    REQUIRE(becomes_true(
        [&] { return world.process(1).out().find("step 5 ") != std::string::npos; }, seconds{60}));
    REQUIRE(hosts.set_link("down"));
    world.fault_now();
    const auto ends = world.wait(milliseconds{2000} + seconds{5});
    INFO(to_text(ends));
    for (int rank = 0; rank < ranks; ++rank) {
      const RankEnd& end = ends[static_cast<std::size_t>(rank)];
      CAPTURE(rank);
      CHECK(end.status == 1);
      CHECK(end.after <= milliseconds{2000} + seconds{5});
      CHECK(end.culprit >= 0);
      CHECK(end.culprit % 2 != rank % 2);
    }
  }
}

TEST_CASE("hosts that have IPv6 addresses come together") {
  std::optional<TwoHosts> hosts(std::in_place);
  if (!hosts->made()) {
    hosts.reset();
    skip("network namespaces, for two hosts");
  }
  FaultWorld world(2);
  for (const int rank : {0, 1}) {
    world.start_by(rank, hosts->enter(rank));
    world.set(rank, "MASTER_ADDR", TwoHosts::address6(0));
  }
  world.start();
  const auto ends = world.wait(seconds{60});
  INFO(to_text(ends));
  for (const RankEnd& end : ends) {
    CHECK(end.status == 0);
    CHECK(end.out.find("step 4 sum ") != std::string::npos);
  }
}

}  // namespace
}  // namespace troupe::test
