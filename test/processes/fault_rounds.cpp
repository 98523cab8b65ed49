// Random faults at random points in worlds of processes.
//
//     fault_rounds [--rounds N] [--first SEED]
//
// A round trains on 2 to 4 ranks, with one of the strategies, and puts one fault into one of them:
// half of the faults at a point of the rank's own program, the others, signals, at any time. Then
// every rank that can has ended with 1 within the deadline and 5 s, and all of them name the rank
// that the fault was in, and tell of the same failure. (Not if rank 0 is gone, which serves the
// store: then each says for itself how it has lost that.)
#include "fault_world.hpp"
#include "troupe/test/support/random.hpp"

#include <chrono>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int steps = 4;

struct Round {
  int ranks = 2;
  int culprit = 0;
  int strategy = 0;
  std::string fault;     ///< of the rank's own program; empty: a signal from outside
  int at = 0;            ///< its point
  int signal = 0;        ///< else this
  milliseconds after{};  ///< the first step
};

Round drawn(std::uint64_t seed) {
  Random random(seed);
  Round round;
  round.ranks = 2 + static_cast<int>(random.below(3));
  round.culprit = static_cast<int>(random.below(static_cast<std::uint64_t>(round.ranks)));
  round.strategy = static_cast<int>(random.below(3));
  if (random.percent(50)) {
    round.fault =
        random.of(std::vector<std::string>{"kill", "stop", "throw", "exit", "leave", "hang"});
    // After the last step there is nothing left that others could wait for.
    const int points =
        round.fault == "leave" ? (steps - 1) * points_per_step : steps * points_per_step - 1;
    round.at = static_cast<int>(random.below(static_cast<std::uint64_t>(points)));
  } else {
    round.signal = random.percent(50) ? SIGKILL : SIGSTOP;
    round.after = milliseconds{random.below(300)};
  }
  return round;
}

std::string to_text(const Round& round) {
  return std::to_string(round.ranks) + " ranks, strategy " + std::to_string(round.strategy) +
         ", rank " + std::to_string(round.culprit) + ": " +
         (round.fault.empty() ? "signal " + std::to_string(round.signal) + " " +
                                    std::to_string(round.after.count()) + " ms after the first step"
                              : round.fault + " at point " + std::to_string(round.at));
}

/// Empty if all is well.
std::string judged(const Round& round, const std::vector<RankEnd>& ends, milliseconds limit) {
  const bool hangs = round.fault == "hang";
  std::string text;
  for (int rank = 0; rank < round.ranks; ++rank) {
    const RankEnd& end = ends[static_cast<std::size_t>(rank)];
    const std::string who = "rank " + std::to_string(rank);
    if (rank == round.culprit) {
      if (!hangs && (!end.status || *end.status == 0)) {
        return who + ", the culprit, did not end as a failure";
      }
      continue;
    }
    if (end.status != 1) {
      return who + " did not end with 1";
    }
    if (end.after > limit) {
      return who + " took " + std::to_string(end.after.count()) + " ms";
    }
    if (end.culprit != round.culprit) {
      return who + " took rank " + std::to_string(end.culprit) + " for the culprit";
    }
    if (end.ticket == 0 && round.fault != "throw") {
      return who + " named no ticket";
    }
    if (round.culprit != 0 && !text.empty() && end.text != text) {
      return who + " told of another failure";
    }
    text = end.text;
  }
  return "";
}

std::string run_round(std::uint64_t seed, std::map<std::string, int>& tally) {
  const Round round = drawn(seed);
  FaultWorld world(round.ranks);
  world.all([&](RankOptions& options) {
    // A signal from outside has to find them still at work.
    options.steps = round.fault.empty() ? 1'000'000 : steps;
    options.strategy = round.strategy;
  });
  if (!round.fault.empty()) {
    world.of(round.culprit).fault = round.fault;
    world.of(round.culprit).at = round.at;
  }
  world.start();
  if (round.fault.empty()) {
    const bool begun = becomes_true(
        [&] { return world.process(round.culprit).out().find("step 1 ") != std::string::npos; },
        seconds{60});
    if (!begun) {
      return to_text(round) + ": it did not begin";
    }
    std::this_thread::sleep_for(round.after);
    world.process(round.culprit).signal(round.signal);
    world.fault_now();
  }
  const bool stopped = round.fault == "stop" || round.signal == SIGSTOP;
  const milliseconds limit = world.of(0).timeout + seconds{5};
  const auto ends =
      world.wait(limit, stopped ? std::vector<int>{round.culprit} : std::vector<int>{});
  ++tally[round.fault.empty() ? "signal " + std::to_string(round.signal) : round.fault];
  const std::string wrong = judged(round, ends, limit);
  return wrong.empty() ? "" : to_text(round) + ": " + wrong + "\n" + to_text(ends);
}

int run(std::uint64_t first, std::uint64_t rounds) {
  std::map<std::string, int> tally;
  for (std::uint64_t seed = first; seed < first + rounds; ++seed) {
    if (const std::string wrong = run_round(seed, tally); !wrong.empty()) {
      std::cout << "seed " << seed << ": " << wrong << "\nagain: fault_rounds --rounds 1 --first "
                << seed << "\n";
      return 1;
    }
  }
  std::cout << rounds << " rounds:";
  for (const auto& [fault, count] : tally) {
    std::cout << " " << fault << " " << count << "x";
  }
  std::cout << "; every rank ended in time and named the culprit\n";
  return 0;
}

}  // namespace
}  // namespace troupe::test

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  try {
    std::uint64_t rounds = 20;
    std::uint64_t first = 1;
    for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
      if (words[i] == "--rounds") {
        rounds = std::stoull(words[i + 1]);
      } else if (words[i] == "--first") {
        first = std::stoull(words[i + 1]);
      } else {
        std::cerr << "fault_rounds [--rounds N] [--first SEED]\n";
        return 2;
      }
    }
    return troupe::test::run(first, rounds);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
