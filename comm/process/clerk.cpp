#include "troupe/comm/process/clerk.hpp"

#include <iterator>
#include <utility>

namespace troupe {

Clerk::Clerk() : thread_([this] { run(); }) {}

Clerk::~Clerk() {
  stop();
}

void Clerk::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Clerk::once(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    once_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void Clerk::until(std::function<bool()> step) {
  {
    const std::lock_guard lock(mutex_);
    until_.push_back(std::move(step));
  }
  changed_.notify_all();
}

bool Clerk::idle() const {
  const std::lock_guard lock(mutex_);
  return once_.empty() && until_.empty() && !busy_;
}

void Clerk::run() {
  std::unique_lock lock(mutex_);
  TimePoint next_round{};
  for (;;) {
    if (!once_.empty()) {
      const std::function<void()> work = std::move(once_.front());
      once_.pop_front();
      busy_ = true;
      lock.unlock();
      work();
      lock.lock();
      busy_ = false;
    } else if (stop_) {
      return;
    } else if (until_.empty()) {
      changed_.wait(lock);
    } else if (const TimePoint now = std::chrono::steady_clock::now(); now < next_round) {
      changed_.wait_until(lock, next_round);
    } else {
      next_round = now + again_after;
      std::vector<std::function<bool()>> steps = std::exchange(until_, {});
      busy_ = true;
      lock.unlock();
      std::erase_if(steps, [](const std::function<bool()>& step) { return step(); });
      lock.lock();
      busy_ = false;
      // Before what has come meanwhile.
      until_.insert(until_.begin(), std::make_move_iterator(steps.begin()),
                    std::make_move_iterator(steps.end()));
    }
  }
}

}  // namespace troupe
