#include "isolation.hpp"

#include "troupe/test/mutants/mutant.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iostream>
#include <optional>
#include <unistd.h>

namespace troupe::test {

namespace {

constexpr int exit_violated = 42;

/// In memory that parent and child share.
struct Board {
  std::uint64_t seed;
  std::uint64_t runs;
  std::uint64_t steps;
  std::uint64_t messages;
  std::uint64_t failed_worlds;
  std::uint64_t hash;
  std::uint64_t mutant_executed;
  std::uint64_t step;
  std::uint64_t choice_count;
  bool violated;
  char invariant[160];
  char text[4096];
  char history[16384];
  std::uint16_t choices[std::size_t{1} << 20];
};

class SharedBoard {
 public:
  SharedBoard()
      : board_(static_cast<Board*>(mmap(
            nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (static_cast<void*>(board_) == MAP_FAILED) {
      std::cerr << "cannot map " << sizeof(Board) << " bytes\n";
      std::_Exit(1);
    }
  }
  ~SharedBoard() { munmap(board_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board* operator->() { return board_; }
  Board& operator*() { return *board_; }

 private:
  Board* board_;
};

template <std::size_t size>
void put(char (&to)[size], const std::string& text) {
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

/// A chooser that leaves what it says on the board.
class BoardChooser final : public Chooser {
 public:
  BoardChooser(Chooser& chooser, Board& board) : chooser_(chooser), board_(board) {}
  std::size_t choose(std::span<const Option> options) override {
    return noted(chooser_.choose(options));
  }
  std::size_t draw(std::size_t count) override { return noted(chooser_.draw(count)); }

 private:
  std::size_t noted(std::size_t number) {
    if (board_.choice_count < std::size(board_.choices)) {
      board_.choices[board_.choice_count++] = static_cast<std::uint16_t>(number);
    }
    return number;
  }

  Chooser& chooser_;
  Board& board_;
};

void limit_processor_time(unsigned seconds) {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto now = static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec);
  rlimit limit{.rlim_cur = now + seconds, .rlim_max = RLIM_INFINITY};
  setrlimit(RLIMIT_CPU, &limit);
}

void run_in_child(const RunPlan& plan, Board& board, unsigned seconds) {
  limit_processor_time(seconds);
  board.seed = plan.seed;
  board.choice_count = 0;
  const ModelWorld world = random_world(plan.seed);
  const Expected expected(world);
  SeededChooser seeded(plan.seed);
  ReplayChooser replayed(plan.choices);
  BoardChooser chooser(plan.replay ? static_cast<Chooser&>(replayed) : seeded, board);
  const Outcome outcome = run_world(
      world, expected, Pace::any_order, chooser,
      [&](const std::string& invariant, const std::string& text, const Simulation& simulation) {
        put(board.invariant, invariant);
        put(board.text, text);
        std::string history;
        for (const std::string& line : simulation.history()) {
          history += "    " + line + "\n";
        }
        put(board.history, history);
        board.step = simulation.steps();
        board.violated = true;
        std::_Exit(exit_violated);
      });
  ++board.runs;
  board.steps += outcome.steps;
  board.messages += outcome.messages;
  board.failed_worlds += outcome.failure.empty() ? 0U : 1U;
  board.hash = (board.hash ^ outcome.hash) * 1099511628211ULL;
}

/// Runs `work` on the board in a child process and says how that ended.
RangeResult in_child(const std::function<void(Board&)>& work) {
  SharedBoard board;
  std::cout.flush();
  const pid_t child = fork();
  if (child < 0) {
    std::cerr << "cannot fork\n";
    std::_Exit(1);
  }
  if (child == 0) {
    const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
    setrlimit(RLIMIT_CORE, &no_core);
    count_executions_in(&board->mutant_executed);
    work(*board);
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  RangeResult result{.finding = {},
                     .runs = board->runs,
                     .steps = board->steps,
                     .messages = board->messages,
                     .failed_worlds = board->failed_worlds,
                     .hash = board->hash,
                     .mutant_executed = board->mutant_executed};
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return result;
  }
  Finding& finding = result.finding;
  finding.found = true;
  finding.seed = board->seed;
  finding.step = board->step;
  finding.choices.assign(board->choices, board->choices + board->choice_count);
  if (board->violated) {
    finding.invariant = board->invariant;
    finding.text = board->text;
    finding.history = board->history;
  } else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) {
    finding.invariant = "L: every step ends";
    finding.text = "it runs for ever";
  } else {
    finding.invariant = "0: nothing crashes";
    finding.text = WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                       : "exit " + std::to_string(WEXITSTATUS(status));
  }
  return result;
}

}  // namespace

RangeResult run_range(std::uint64_t first, std::uint64_t count, unsigned seconds_per_run) {
  return in_child([&](Board& board) {
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
      run_in_child({.seed = seed, .replay = false, .choices = {}}, board, seconds_per_run);
    }
  });
}

RangeResult run_one(const RunPlan& plan, unsigned seconds_per_run) {
  return in_child([&](Board& board) { run_in_child(plan, board, seconds_per_run); });
}

}  // namespace troupe::test
