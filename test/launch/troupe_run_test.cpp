// The launcher as a program, with ranks that are lines of shell script: what they are told, what
// becomes of what they write, and how they end.
#include "troupe/test/support/child_process.hpp"
#include "troupe/test/support/test_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <set>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace troupe::test {
namespace {

using std::chrono::seconds;

constexpr seconds limit{30};

/// A word that marks the processes of one test.
std::string mark() {
  static int count = 0;
  return "troupe_run_test_" + std::to_string(::getpid()) + "_" + std::to_string(++count);
}

/// troupe-run with `ranks` shells that each run `script`; their $0 is `name`.
ChildOptions job(int ranks, const std::string& script, const std::string& name = "rank") {
  return {.command = {TROUPE_RUN, "-n", std::to_string(ranks), "--settle", "0", "--grace", "1",
                      "--", "/bin/sh", "-c", script, name}};
}

std::set<std::string> lines(const std::string& text) {
  std::set<std::string> found;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    found.insert(line);
  }
  return found;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

using Lines = std::set<std::string>;

TEST_CASE("each rank is told which it is, and all the same about the world") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    ChildProcess run(job(ranks,
                         "echo $RANK $LOCAL_RANK of $WORLD_SIZE $LOCAL_WORLD_SIZE at $MASTER_ADDR; "
                         "echo $MASTER_PORT ${#TROUPE_SECRET} $TROUPE_SECRET >&2"));
    CHECK(run.wait(limit) == 0);
    Lines expected;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string number = std::to_string(rank);
      const std::string size = std::to_string(ranks);
      expected.insert("[" + number + "] " + number + " " + number + " of " + size + " " + size +
                      " at 127.0.0.1");
    }
    CHECK(lines(run.out()) == expected);
    Lines world;
    for (const std::string& line : lines(run.err())) {
      world.insert(line.substr(line.find(' ') + 1));
    }
    REQUIRE(world.size() == 1);  // port and secret are the same on all
    CHECK(world.begin()->find(" 64 ") != std::string::npos);
  }
}

TEST_CASE("what a launcher around it says is not passed on, a secret is") {
  ChildOptions options = job(2,
                             "echo ${TROUPE_RANK-none} ${TROUPE_STORE-none} "
                             "${TORCHELASTIC_USE_AGENT_STORE-none} $TROUPE_SECRET $RANK");
  options.variables = {{"TROUPE_RANK", "7"},
                       {"TROUPE_STORE", "node1:80"},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                       {"RANK", "9"},
                       {"TROUPE_SECRET", "mine"}};
  ChildProcess run(options);
  CHECK(run.wait(limit) == 0);
  CHECK(lines(run.out()) == Lines{"[0] none none none mine 0", "[1] none none none mine 1"});
}

TEST_CASE("output and errors stay apart, each line whole") {
  ChildProcess run(job(3, "echo out; echo err >&2; printf 'last of %s' $RANK"));
  CHECK(run.wait(limit) == 0);
  CHECK(lines(run.out()) ==
        Lines{"[0] out", "[1] out", "[2] out", "[0] last of 0", "[1] last of 1", "[2] last of 2"});
  CHECK(lines(run.err()) == Lines{"[0] err", "[1] err", "[2] err"});
  CHECK(run.out().ends_with("\n"));
}

TEST_CASE("lines of ranks that write much at once do not mix") {
  // 1,000 lines of 1,000 characters of each of four ranks.
  ChildProcess run(job(4,
                       "line=$(printf '%01000d' 0 | tr 0 $RANK); i=0; "
                       "while [ $i -lt 1000 ]; do echo $line; i=$((i+1)); done"));
  CHECK(run.wait(limit) == 0);
  const std::string out = run.out();
  CHECK(out.size() == 4U * 1000 * 1005);
  Lines expected;
  for (const char rank : {'0', '1', '2', '3'}) {
    expected.insert("[" + std::string(1, rank) + "] " + std::string(1000, rank));
  }
  CHECK(lines(out) == expected);
}

TEST_CASE("the first failure ends all others, and its code is the job's") {
  const std::string name = mark();
  SUBCASE("an exit code") {
    ChildProcess run(job(4, "if [ $RANK = 2 ]; then exit 7; fi; sleep 1000", name));
    CHECK(run.wait(limit) == 7);
    CHECK(run.err() == "troupe-run: rank 2 has ended with 7\n");
  }
  SUBCASE("a signal") {
    ChildProcess run(job(3, "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 1000", name));
    CHECK(run.wait(limit) == 128 + SIGKILL);
    CHECK(run.err() == "troupe-run: rank 1 has ended with 137 (signal 9, Killed)\n");
  }
  SUBCASE("others that end in good order do not change it") {
    const TestFolder folder;
    const std::string ready = (folder.path() / "ready").string();
    ChildProcess run(job(2,
                         "if [ $RANK = 0 ]; then until [ -e " + ready +
                             " ]; do sleep 0.01; done; exit 3; fi; "
                             "trap 'echo told; exit 0' TERM; : > " +
                             ready + "; while :; do sleep 0.01; done",
                         name));
    CHECK(run.wait(limit) == 3);
    CHECK(run.out() == "[1] told\n");
  }
  SUBCASE("others that do not end are killed") {
    ChildProcess run(job(2,
                         "trap '' TERM; if [ $RANK = 0 ]; then sleep 0.2; exit 3; fi; "
                         "while :; do sleep 0.01; done",
                         name));
    CHECK(run.wait(limit) == 3);
  }
  CHECK(processes_with(name).empty());
}

TEST_CASE("after a failure the others have time to end by themselves, with their own words") {
  ChildProcess run({.command = {TROUPE_RUN, "-n", "2", "--settle", "20", "--", "/bin/sh", "-c",
                                "if [ $RANK = 0 ]; then exit 3; fi; sleep 1; echo why; exit 4"}});
  CHECK(run.wait(limit) == 3);
  CHECK(run.out() == "[1] why\n");
  CHECK(run.err() == "troupe-run: rank 0 has ended with 3\n");
}

TEST_CASE("a rank that has ended well before the first failure is named, and what no signal did") {
  const std::string command = "if [ $RANK = 1 ]; then exit 0; fi; sleep 0.5; exit 143";
  ChildProcess run({.command = {TROUPE_RUN, "-n", "2", "--", "/bin/sh", "-c", command}});
  CHECK(run.wait(limit) == 143);
  CHECK(run.err() == "troupe-run: rank 0 has ended with 143, after rank 1 had ended with 0\n");
}

TEST_CASE("a rank that ends well early is not waited for, nor does it end the others") {
  ChildProcess run(job(2, "if [ $RANK = 1 ]; then sleep 0.3; echo later; fi"));
  CHECK(run.wait(limit) == 0);
  CHECK(run.out() == "[1] later\n");
}

TEST_CASE("signals are passed on, once each") {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(number);
    ChildProcess run(job(3,
                         "trap 'echo INT; end=1' INT; trap 'echo TERM; end=1' TERM; "
                         "trap 'echo HUP; end=1' HUP; echo ready; "
                         "while [ -z \"$end\" ]; do sleep 0.01; done; sleep 0.1"));
    REQUIRE(becomes_true([&] { return count(run.out(), "ready") == 3; }));
    run.signal(number);
    CHECK(run.wait(limit) == 0);
    const std::string name = number == SIGINT ? "INT" : number == SIGTERM ? "TERM" : "HUP";
    const std::string out = run.out();
    CHECK(count(out, name + "\n") == 3);
    CHECK(lines(out).size() == 6);
  }
}

TEST_CASE("a signal that it was started with ignored is left alone") {
  ChildOptions options = job(2, "echo ready; sleep 0.5; echo done");
  options.ignored_signals = {SIGHUP};
  ChildProcess run(options);
  REQUIRE(becomes_true([&] { return count(run.out(), "ready") == 2; }));
  run.signal(SIGHUP);
  CHECK(run.wait(limit) == 0);
  CHECK(count(run.out(), "done") == 2);
}

TEST_CASE("nothing that a rank has started stays behind") {
  const std::string name = mark();
  SUBCASE("when it ends, and its output is still held") {
    ChildProcess run(job(2, "/bin/sh -c 'sleep 1000' " + name + " & echo started"));
    CHECK(run.wait(limit) == 0);
    CHECK(count(run.out(), "started") == 2);
  }
  SUBCASE("when it is stopped") {
    ChildProcess run(job(2, "if [ $RANK = 0 ]; then sleep 0.2; exit 5; fi; kill -STOP $$", name));
    CHECK(run.wait(limit) == 5);
  }
  SUBCASE("when the launcher is killed") {
    ChildProcess run(job(3, "echo ready; exec /bin/sh -c 'while :; do sleep 0.01; done' " + name));
    REQUIRE(becomes_true([&] { return processes_with(name).size() == 3; }));
    run.signal(SIGKILL);
    CHECK(run.wait(limit) == -SIGKILL);
    CHECK(becomes_true([&] { return processes_with(name).empty(); }));
  }
  CHECK(processes_with(name).empty());
}

TEST_CASE("a rank begins as if it had been started by hand") {
  // The descriptors, and the signals that are blocked, ignored and caught.
  const std::string script =
      "cat; echo $(ls /proc/self/fd); cat /proc/self/status | sed -n '/^Sig[BIC]/p'";
  ChildProcess by_hand({.command = {"/bin/sh", "-c", "exec </dev/null; " + script}});
  CHECK(by_hand.wait(limit) == 0);
  ChildProcess run(job(1, script));
  CHECK(run.wait(limit) == 0);
  CHECK(count(run.out(), "[0] Sig") == 3);
  Lines expected;
  for (const std::string& line : lines(by_hand.out())) {
    expected.insert("[0] " + line);
  }
  CHECK(lines(run.out()) == expected);
}

TEST_CASE("a descriptor that the user has opened for the ranks reaches them") {
  const std::string command =
      "exec 7>&1; exec " TROUPE_RUN " -n 2 -- /bin/sh -c 'echo by the way >&7'";
  ChildProcess run({.command = {"/bin/sh", "-c", command}});
  CHECK(run.wait(limit) == 0);
  CHECK(run.out() == "by the way\nby the way\n");
}

TEST_CASE("what has left its rank's group is not waited for, whatever the ranks' grace") {
  const std::string name = mark();
  const std::string script = "setsid /bin/sh -c 'sleep 40; :' $0 & sleep 0.3; exit 3";
  ChildProcess run(
      {.command = {TROUPE_RUN, "-n", "1", "--grace", "60", "--", "/bin/sh", "-c", script, name}});
  CHECK(run.wait(seconds{20}) == 3);
  const std::vector<pid_t> left = processes_with(name);
  CHECK(left.size() == 1);
  for (const pid_t process : left) {
    ::kill(-process, SIGKILL);
  }
}

TEST_CASE("a standard stream that is closed leads nowhere, and holds nobody up") {
  for (const std::string closed : {"<&-", ">&-", "2>&-", "<&- >&- 2>&-"}) {
    CAPTURE(closed);
    const std::string command =
        "exec " TROUPE_RUN " -n 2 --grace 1 -- /bin/sh -c 'cat; echo out; echo err >&2' " + closed;
    ChildProcess run({.command = {"/bin/sh", "-c", command}});
    const auto status = run.wait(seconds{10});
    CHECK(status == 0);
    const bool out = closed.find(" >&-") == std::string::npos && !closed.starts_with('>');
    const bool err = closed.find("2>&-") == std::string::npos;
    CHECK(lines(run.out()) == (out ? Lines{"[0] out", "[1] out"} : Lines{}));
    CHECK(lines(run.err()) == (err ? Lines{"[0] err", "[1] err"} : Lines{}));
  }
}

TEST_CASE("a program that is not there, or cannot be run, is named") {
  ChildProcess missing({.command = {TROUPE_RUN, "-n", "3", "no-such-program"}});
  CHECK(missing.wait(limit) == 127);
  CHECK(missing.err() == "troupe-run: cannot run no-such-program: No such file or directory\n");
  ChildProcess folder({.command = {TROUPE_RUN, "-n", "3", "/tmp"}});
  CHECK(folder.wait(limit) == 126);
  CHECK(folder.err() == "troupe-run: cannot run /tmp: Permission denied\n");
}

TEST_CASE("it ends when nobody reads any more, also while a reader does not come to it") {
  const std::string name = mark();
  SUBCASE("gone") {
    ChildProcess run({.command = {"/bin/bash", "-c",
                                  TROUPE_RUN " -n 2 -- /bin/sh -c 'yes' " + name +
                                      " | head -3; exit ${PIPESTATUS[0]}"}});
    CHECK(run.wait(limit) == 128 + SIGPIPE);
    CHECK(count(run.out(), "y\n") == 3);
    CHECK(run.err() == "troupe-run: cannot write what the ranks write: Broken pipe\n");
  }
  SUBCASE("asleep: signals and failures are still taken care of") {
    ChildProcess run({.command = {"/bin/bash", "-c",
                                  TROUPE_RUN " -n 2 --grace 1 -- /bin/sh -c "
                                             "'if [ $RANK = 1 ]; then sleep 1; exit 9; fi; yes' " +
                                      name + " | sleep 6; exit ${PIPESTATUS[0]}"}});
    CHECK(becomes_true([&] { return !processes_with(name).empty(); }));
    CHECK(becomes_true([&] { return processes_with(name).size() == 1; }, seconds{5}));
    CHECK(run.wait(limit) == 9);
  }
}

}  // namespace
}  // namespace troupe::test
