/// The log of a world, as one process sees it: a copy of the world's history that a thread keeps up
/// to date, and what the process adds to it.
///
/// Thread rules: any thread. Errors: if the store does not answer any more, the log is lost:
/// nothing is read or written from then on.
#pragma once

#include "troupe/comm/process/clerk.hpp"
#include "troupe/comm/process/world_history.hpp"
#include "troupe/comm/store/store.hpp"
#include "troupe/core/function_ref.hpp"

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troupe {

class WorldLog {
 public:
  /// How long the store is waited for by who cannot go on without it.
  static constexpr std::chrono::seconds store_limit{3};
  static constexpr const char* name = "world";

  /// A store that does not answer for `silence_limit`, at least `store_limit`, is lost. `on_change`
  /// is called on a thread of the log after each entry, and when the log is lost; it does not
  /// block. `store` outlives the log.
  WorldLog(Store& store, int world_size, Duration silence_limit, std::function<void()> on_change);
  ~WorldLog();
  WorldLog(const WorldLog&) = delete;
  WorldLog& operator=(const WorldLog&) = delete;

  void start();
  /// Says what is left to say, closes the store and ends the threads.
  void close();

  // Later, in the order of these calls.

  void say(WorldEvent event);
  void set(std::string key, std::string value);
  void erase(std::string key);

  Clerk& clerk() { return clerk_; }
  /// The values of the keys `prefix` + rank that are set, of `ranks`. Waits for the store.
  std::map<int, std::string> look(const std::string& prefix, const std::vector<int>& ranks);

  /// What `f` makes of the history.
  template <class F>
  auto of_history(F f) const {
    const std::lock_guard lock(mutex_);
    return f(history_);
  }
  /// Has locks of its own.
  LocalRendezvous& meetings() { return history_.meetings(); }

  /// Waits until `ready` holds, which is asked after each entry, and after each `notify`. False
  /// when `deadline` has passed.
  bool wait(FunctionRef<bool(const WorldHistory&)> ready, TimePoint deadline) const;
  void notify() const;
  Duration silence_limit() const { return silence_limit_; }
  /// Why the log is lost, if it is.
  std::optional<std::string> lost() const;

 private:
  void read();
  void lose(const std::string& why);
  /// Whether that worked; if not, the log is lost.
  template <class T>
  bool worked(const Result<T>& result);

  TimePoint soon() const { return Clock::steady().now() + silence_limit_; }

  Store& store_;
  const Duration silence_limit_;
  const std::function<void()> on_change_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  WorldHistory history_;
  std::optional<std::string> lost_;
  bool stop_ = false;

  std::thread reader_;
  Clerk clerk_;
};

}  // namespace troupe
