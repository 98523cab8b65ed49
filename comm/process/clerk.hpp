/// A thread that does what takes a while, so that nobody else waits for it: what a process has to
/// say to its world's store.
///
/// Thread rules: any thread. The work runs on the clerk's, one piece at a time, and does not throw.
#pragma once

#include "troupe/comm/waiting.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe {

class Clerk {
 public:
  /// How often work that is not done yet is tried again.
  static constexpr std::chrono::milliseconds again_after{5};

  Clerk();
  ~Clerk();
  Clerk(const Clerk&) = delete;
  Clerk& operator=(const Clerk&) = delete;

  /// Does `work`, in the order of these calls.
  void once(std::function<void()> work);
  /// Does `step` now and then, until it returns true.
  void until(std::function<bool()> step);
  /// Does what is left of `once`, and drops what is left of `until`; then does nothing any more.
  void stop();
  /// Whether nothing is left to do.
  bool idle() const;

 private:
  void run();

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> once_;
  std::vector<std::function<bool()>> until_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace troupe
