// Kills the demo while it saves, again and again, and goes on from what is there.
//
//     gpt_kills [--rounds N] [--first SEED]
//
// A round trains 6 steps with a checkpoint of each, is killed (SIGKILL, by its process id) one to
// three times at points that the seed chooses, goes on from the newest checkpoint each time, and
// ends. Half of the kills are at a file operation of a save, any of them; the other half at any
// time. Whatever the point: a checkpoint that was there stays or gives way to a newer one, what is
// left can be loaded, and the last checkpoint is the same, byte for byte, as that of a run that
// nobody killed: parameters, optimizer state, counts.
#include "troupe/examples/gpt/demo.hpp"
#include "troupe/examples/gpt/options.hpp"
#include "troupe/runtime/checkpoint.hpp"
#include "troupe/runtime/checkpoint/index.hpp"
#include "troupe/test/support/checkpoints.hpp"
#include "troupe/test/support/random.hpp"

#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <spawn.h>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace troupe::test {
namespace {

namespace fs = std::filesystem;

constexpr int steps = 6;
constexpr int never = -1;

gpt::Options demo_options(const fs::path& folder, std::uint64_t seed) {
  gpt::Options options;
  options.config = {.layers = 1, .width = 16, .heads = 2, .sequence = 8, .batch = 1};
  options.ranks = 1 + static_cast<int>(seed % 4);
  options.strategy = std::array{Strategy::full_shard, Strategy::sharded_optimizer,
                                Strategy::owner_broadcast}[seed % 3];
  options.steps = steps;
  options.data = fs::path(TROUPE_SOURCE_DIR) / "LICENSE";
  options.reference = false;  // the demo's other tests compare with it
  options.save = folder;
  options.save_every = 1;
  return options;
}

/// The program as a child: `kill_at` is the file operation before which it dies.
int child(const fs::path& folder, std::uint64_t seed, int kill_at) {
  gpt::Options options = demo_options(folder, seed);
  if (newest_checkpoint(folder)) {
    options.resume = folder;
  }
  std::atomic<int> operations{0};
  options.before_file = [&](FileOperation, const fs::path&) {
    if (operations++ == kill_at) {
      static_cast<void>(::kill(::getpid(), SIGKILL));
    }
    return Result<void>();
  };
  std::ostringstream out;
  return gpt::run_demo(options, out, std::cerr, false);
}

class Process {
 public:
  Process(const fs::path& folder, std::uint64_t seed, int kill_at) {
    const std::string own = fs::read_symlink("/proc/self/exe").string();
    std::vector<std::string> words{own, "--child", folder.string(), std::to_string(seed),
                                   std::to_string(kill_at)};
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    if (::posix_spawn(&id_, own.c_str(), nullptr, nullptr, arguments.data(), environ) != 0) {
      throw std::runtime_error("cannot start " + own);
    }
  }
  void kill() const { static_cast<void>(::kill(id_, SIGKILL)); }
  /// The exit code, or minus the signal that ended it.
  int wait() const {
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t id_ = 0;
};

std::string last_checkpoint(const fs::path& folder) {
  const fs::path last = folder / step_name(steps);
  const std::string names = listing(last);
  std::string all = names + "\n";
  std::istringstream words(names);
  for (std::string name; words >> name;) {
    all += bytes_of(last / name);
  }
  return all;
}

struct Tally {
  int at_operation = 0;
  int at_any_time = 0;
  int without_checkpoint = 0;  ///< nothing to go on from
  int unfinished = 0;          ///< left a folder that is no checkpoint
};

/// Empty if all is well.
std::string round(std::uint64_t seed, Tally& tally) {
  Random random(seed);
  const TestFolder right;
  if (const int code = Process(right.path(), seed, never).wait(); code != 0) {
    return "the run that nobody kills ended with " + std::to_string(code);
  }
  const TestFolder folder;
  // Each rank has three operations a save, rank 0 ten more and two to delete an old one.
  const std::uint64_t operations = steps * (3 * (1 + seed % 4) + 12);
  const std::uint64_t kills = 1 + random.below(3);
  for (std::uint64_t kill = 0; kill < kills; ++kill) {
    const auto before = newest_checkpoint(folder.path());
    int code = 0;
    if (random.percent(50)) {
      code = Process(folder.path(), seed, static_cast<int>(random.below(operations))).wait();
      tally.at_operation += code == -SIGKILL ? 1 : 0;
    } else {
      const Process process(folder.path(), seed, never);
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(120'000)));
      process.kill();
      code = process.wait();
      tally.at_any_time += code == -SIGKILL ? 1 : 0;
    }
    const auto after = newest_checkpoint(folder.path());
    if (code != -SIGKILL && code != 0) {
      return "it ended with " + std::to_string(code);
    }
    if (before && (!after || *after < *before)) {
      return before->string() + " was the newest checkpoint, and is gone";
    }
    tally.without_checkpoint += after ? 0 : 1;
    tally.unfinished += listing(folder.path()).find(".tmp") != std::string::npos ? 1 : 0;
    if (after == folder.path() / step_name(steps)) {
      break;  // complete, whether or not the program has ended by itself
    }
  }
  if (newest_checkpoint(folder.path()) != folder.path() / step_name(steps)) {
    if (const int code = Process(folder.path(), seed, never).wait(); code != 0) {
      return "the run that goes on ended with " + std::to_string(code);
    }
  }
  return last_checkpoint(folder.path()) == last_checkpoint(right.path())
             ? ""
             : "the last checkpoint is another than without a kill";
}

int run(std::uint64_t first, std::uint64_t rounds) {
  Tally tally;
  for (std::uint64_t seed = first; seed < first + rounds; ++seed) {
    const std::string wrong = round(seed, tally);
    if (!wrong.empty()) {
      std::cout << "seed " << seed << ": " << wrong << "\nagain: gpt_kills --rounds 1 --first "
                << seed << "\n";
      return 1;
    }
  }
  std::cout << rounds << " rounds, killed " << tally.at_operation
            << " times at a file operation and " << tally.at_any_time << " times at any time; "
            << tally.unfinished << " times a folder was left unfinished, "
            << tally.without_checkpoint
            << " times there was no checkpoint yet; every last checkpoint is the same, byte for "
               "byte, as without a kill\n";
  return 0;
}

}  // namespace
}  // namespace troupe::test

int main(int count, char** arguments) {
  using namespace troupe::test;
  const std::vector<std::string> words(arguments + 1, arguments + count);
  try {
    if (words.size() == 4 && words[0] == "--child") {
      return child(words[1], std::stoull(words[2]), std::stoi(words[3]));
    }
    std::uint64_t rounds = 10;
    std::uint64_t first = 1;
    for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
      if (words[i] == "--rounds") {
        rounds = std::stoull(words[i + 1]);
      } else if (words[i] == "--first") {
        first = std::stoull(words[i + 1]);
      } else {
        std::cerr << "gpt_kills [--rounds N] [--first SEED]\n";
        return 2;
      }
    }
    return run(first, rounds);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
