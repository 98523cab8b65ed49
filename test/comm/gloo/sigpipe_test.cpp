#include "troupe/comm/gloo/sigpipe.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <signal.h>
#include <thread>
#include <unistd.h>

namespace troupe::test {
namespace {

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

bool is_blocked() {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, SIGPIPE) == 1;
}

TEST_CASE("a write that nobody reads does not end the process, nor later") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  {
    const SigpipeBlocked sigpipe_blocked;
    CHECK(write(ends[1], "x", 1) == -1);
    CHECK(is_pending());
    std::thread([&] { CHECK(is_blocked()); }).join();
  }
  close(ends[1]);
  CHECK_FALSE(is_pending());
  CHECK_FALSE(is_blocked());
}

TEST_CASE("what was blocked or pending before stays so") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  const SigpipeBlocked outer;
  CHECK(write(ends[1], "x", 1) == -1);
  {
    const SigpipeBlocked inner;
  }
  CHECK(is_pending());
  CHECK(is_blocked());
  close(ends[1]);
}

}  // namespace
}  // namespace troupe::test
