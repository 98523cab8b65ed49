#include "troupe/comm/gloo/interruption.hpp"

#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <pthread.h>

namespace troupe {

void Interruption::raise() {
  const std::lock_guard lock(mutex_);
  raised_ = true;
  if (waited_for_ != nullptr) {
    waited_for_->abortWaitRecv();
    waited_for_->abortWaitSend();
  }
}

bool Interruption::raised() const {
  const std::lock_guard lock(mutex_);
  return raised_;
}

void Interruption::clear() {
  const std::lock_guard lock(mutex_);
  raised_ = false;
}

bool Interruption::wait(gloo::transport::UnboundBuffer& buffer, Way way, TimePoint deadline) {
  // Who raises ends the wait; this is for a deadline that nobody watches.
  constexpr auto grace = std::chrono::seconds{10};
  {
    const std::lock_guard lock(mutex_);
    if (raised_) {
      return false;
    }
    waited_for_ = &buffer;
  }
  struct NoMoreWaiting {
    Interruption& self;
    ~NoMoreWaiting() {
      const std::lock_guard lock(self.mutex_);
      self.waited_for_ = nullptr;
    }
  } const no_more_waiting{*this};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::max(deadline - std::chrono::steady_clock::now(), Duration::zero()) + grace);
  return way == Way::receive ? buffer.waitRecv(limit) : buffer.waitSend(limit);
}

Alarm::Alarm() : worker_([this] { work(); }) {
  pthread_setname_np(worker_.native_handle(), "gloo alarm");
}

Alarm::~Alarm() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  worker_.join();
}

Alarm::Id Alarm::set(TimePoint time, Interruption& interruption) {
  bool earliest = false;
  Id id;
  {
    const std::lock_guard lock(mutex_);
    id = {time, next_++};
    pending_.emplace(id, &interruption);
    earliest = pending_.begin()->first == id;
  }
  if (earliest) {
    changed_.notify_one();
  }
  return id;
}

void Alarm::clear(const Id& id) {
  const std::lock_guard lock(mutex_);
  pending_.erase(id);
}

void Alarm::work() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (pending_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto first = pending_.begin();
    if (first->first.first <= std::chrono::steady_clock::now()) {
      first->second->raise();
      pending_.erase(first);
    } else {
      const TimePoint time = first->first.first;
      changed_.wait_until(lock, time);
    }
  }
}

}  // namespace troupe
