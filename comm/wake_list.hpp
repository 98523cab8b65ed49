/// Who is to be notified of a change; entries come and go.
///
/// Thread rules: any thread. An entry removed is not being notified any more, so it may be
/// destroyed.
#pragma once

#include "troupe/comm/waiting.hpp"

#include <mutex>
#include <vector>

namespace troupe {

class WakeList {
 public:
  void add(Wakeable& waiter) {
    const std::lock_guard lock(mutex_);
    waiters_.push_back(&waiter);
  }

  /// Removes one entry of `waiter`.
  void remove(Wakeable& waiter) {
    const std::lock_guard lock(mutex_);
    for (auto entry = waiters_.begin(); entry != waiters_.end(); ++entry) {
      if (*entry == &waiter) {
        waiters_.erase(entry);
        return;
      }
    }
  }

  void notify_all(const Wakeable* except = nullptr) {
    const std::lock_guard lock(mutex_);
    for (Wakeable* waiter : waiters_) {
      if (waiter != except) {
        waiter->notify();
      }
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Wakeable*> waiters_;  // guarded by mutex_
};

}  // namespace troupe
