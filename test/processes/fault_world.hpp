/// A world of fault_rank processes, started by a test and watched until all have ended.
#pragma once

#include "rank_options.hpp"
#include "troupe/runtime/launch/free_port.hpp"
#include "troupe/test/support/child_process.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::test {

/// How one rank has ended.
struct RankEnd {
  std::optional<int> status{};  ///< exit code, or minus the signal; nothing: it had to be killed
  std::chrono::milliseconds after{};  ///< the fault, or the start if there was none
  std::string out{}, err{};

  /// Of the line "failed code=… rank=… ticket=…: text"; empty, −1 and 0 if there is none.
  std::string code{};
  int culprit = -1;
  long ticket = 0;
  std::string text{};
};

/// For messages of tests.
std::string to_text(const std::vector<RankEnd>& ends);

class FaultWorld {
 public:
  explicit FaultWorld(int ranks) : options_(static_cast<std::size_t>(ranks)) {}

  /// What is changed before the start.
  RankOptions& of(int rank) { return options_[static_cast<std::size_t>(rank)]; }
  void all(const std::function<void(RankOptions&)>& change);
  /// More variables of one rank.
  void set(int rank, const std::string& name, const std::string& value);
  /// The command that a rank's own is put behind: to enter a namespace, say.
  void start_by(int rank, std::vector<std::string> command);

  /// Starts all.
  void start();
  ChildProcess& process(int rank) { return *processes_[static_cast<std::size_t>(rank)]; }
  /// Now is when the fault happens: for those that come from outside.
  void fault_now() { fault_ = Clock::now(); }
  /// Waits for all but those in `stopped` to end, `limit` from the fault on (a rank's point is
  /// one), then lets those go on and waits for them as long.
  std::vector<RankEnd> wait(std::chrono::milliseconds limit, const std::vector<int>& stopped = {});

 private:
  using Clock = std::chrono::steady_clock;
  /// When a rank has come to the point of its fault.
  void watch_for_fault();
  void wait_for(const std::vector<int>& ranks, std::chrono::milliseconds limit);

  std::vector<RankOptions> options_;
  std::map<int, std::map<std::string, std::string>> variables_;
  std::map<int, std::vector<std::string>> starters_;
  launch::FreePort port_;
  std::vector<std::unique_ptr<ChildProcess>> processes_;
  std::vector<RankEnd> ends_;
  std::optional<Clock::time_point> fault_;
  Clock::time_point started_{};
};

}  // namespace troupe::test
