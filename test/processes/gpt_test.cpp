// The demo on the processes of troupe-run: the same bits as on the threads of one process.
#include "troupe/examples/gpt/demo.hpp"
#include "troupe/runtime/checkpoint.hpp"
#include "troupe/test/support/checkpoints.hpp"
#include "troupe/test/support/child_process.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

using std::chrono::seconds;

constexpr seconds limit{60};
constexpr int steps = 3;

std::filesystem::path text() {
  return std::filesystem::path(TROUPE_SOURCE_DIR) / "LICENSE";
}

/// A small model on `ranks` processes.
ChildOptions processes(int ranks, const std::vector<std::string>& arguments) {
  ChildOptions options{.command = {TROUPE_RUN, "-n", std::to_string(ranks), "--", GPT, "--layers",
                                   "1", "--width", "16", "--heads", "2", "--sequence", "8",
                                   "--batch", "1", "--data", text().string()}};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  return options;
}

/// The same on threads of this process.
std::string threads(int ranks, Strategy strategy, const std::filesystem::path& save) {
  gpt::Options options;
  options.config = {.layers = 1, .width = 16, .heads = 2, .sequence = 8, .batch = 1};
  options.ranks = ranks;
  options.strategy = strategy;
  options.steps = steps;
  options.data = text();
  options.reference = false;
  options.save = save;
  std::ostringstream out;
  std::ostringstream err;
  CHECK(gpt::run_demo(options, out, err, false) == 0);
  CHECK(err.str() == "");
  return out.str();
}

/// All bytes of the last checkpoint: parameters, optimizer states, counts.
std::string last_checkpoint(const std::filesystem::path& folder) {
  const auto last = newest_checkpoint(folder);
  REQUIRE(last);
  const std::string names = listing(*last);
  std::string all = names + "\n";
  std::istringstream words(names);
  for (std::string name; words >> name;) {
    all += bytes_of(*last / name);
  }
  return all;
}

/// The lines with losses of sharded training, without what stands before the word.
std::string losses(const std::string& text) {
  std::string found;
  std::istringstream stream(text.substr(0, text.find("unsharded reference\n")));
  for (std::string line; std::getline(stream, line);) {
    const auto step = line.find("step ");
    const auto at = line.find("loss ");
    if (step != std::string::npos && at != std::string::npos && step < at) {
      const auto end = line.find("   ", at + 5);
      found += line.substr(at, end - at) + "\n";
    }
  }
  return found;
}

TEST_CASE("losses, parameters and optimizer states are those of threads, bit for bit") {
  for (const StrategyRow& row : strategies) {
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(row.name);
      CAPTURE(ranks);
      const TestFolder by_threads;
      const TestFolder by_processes;
      const std::string told = threads(ranks, row.strategy, by_threads.path());
      ChildProcess run(processes(ranks, {"--strategy", row.name, "--steps", std::to_string(steps),
                                         "--save", by_processes.path().string()}));
      const auto status = run.wait(limit);
      CAPTURE(run.err());
      CHECK(status == 0);
      CHECK(run.err() == "");
      CHECK(losses(told) != "");
      CHECK(losses(run.out()) == losses(told));
      CHECK(last_checkpoint(by_processes.path()) == last_checkpoint(by_threads.path()));
      CHECK(run.out().find("bitwise equal to those of the unsharded reference: all 11 632, and the "
                           "losses of 3 steps") != std::string::npos);
    }
  }
}

TEST_CASE("only the first rank tells what comes out") {
  ChildProcess run(processes(3, {"--steps", "2"}));
  CHECK(run.wait(limit) == 0);
  const std::string out = run.out();
  CHECK(out.find("[0] sharding") != std::string::npos);
  CHECK(out.find("[1]") == std::string::npos);
  CHECK(out.find("[2]") == std::string::npos);
}

TEST_CASE("the strategies one after the other, each in a world of its own") {
  ChildProcess run(processes(2, {"--steps", "2", "--strategy", "all"}));
  const auto status = run.wait(limit);
  CAPTURE(run.err());
  CHECK(status == 0);
  CHECK(run.out().find("all bitwise equal") != std::string::npos);
}

TEST_CASE("each rank writes a trace of its own") {
  const TestFolder folder;
  ChildProcess run(
      processes(2, {"--steps", "2", "--trace", (folder.path() / "trace.json").string()}));
  CHECK(run.wait(limit) == 0);
  CHECK(listing(folder.path()) == "trace.rank0.json trace.rank1.json");
}

TEST_CASE("SIGTERM ends the step on all ranks, saves it, and the run can go on from there") {
  const TestFolder folder;
  ChildProcess run(processes(3, {"--steps", "1000000", "--save", folder.path().string()}));
  REQUIRE(becomes_true([&] { return run.out().find("sharded training") != std::string::npos; }));
  std::this_thread::sleep_for(std::chrono::milliseconds{500});
  run.signal(SIGTERM);
  const auto status = run.wait(limit);
  CAPTURE(run.out());
  CAPTURE(run.err());
  CHECK(status == 128 + SIGTERM);
  CHECK(run.out().find("[0] stopped                 by SIGTERM, after step ") != std::string::npos);
  const auto saved = newest_checkpoint(folder.path());
  REQUIRE(saved);
  const long step = std::stol(saved->filename().string().substr(5));
  CHECK(run.out().find("after step " + std::to_string(step) + " of 1000000") != std::string::npos);

  ChildProcess again(processes(3, {"--steps", std::to_string(step + 1), "--resume",
                                   folder.path().string(), "--no-reference"}));
  CHECK(again.wait(limit) == 0);
}

TEST_CASE("options that do not go with the launcher are refused on every rank") {
  ChildProcess run(processes(2, {"--ranks", "3"}));
  CHECK(run.wait(limit) == 2);
  CHECK(run.err().find("gpt: ranks is 3, but the launcher has started 2; leave it out") !=
        std::string::npos);
}

}  // namespace
}  // namespace troupe::test
