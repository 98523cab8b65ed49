#include "troupe/comm/gloo/interruption.hpp"

#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <pthread.h>

namespace troupe {

namespace {

/// For Gloo's own timeout, which is not meant to come: `Alarm` ends the wait before.
constexpr std::chrono::milliseconds never = std::chrono::hours{24 * 366};

}  // namespace

void Interruption::raise() {
  {
    const std::lock_guard lock(mutex_);
    raised_ = true;
  }
  nudge();
}

bool Interruption::raised() const {
  const std::lock_guard lock(mutex_);
  return raised_;
}

void Interruption::nudge() {
  const std::lock_guard lock(mutex_);
  if (waited_for_ != nullptr) {
    waited_for_->abortWaitRecv();
    waited_for_->abortWaitSend();
  }
}

bool Interruption::wait(gloo::transport::UnboundBuffer& buffer, Way way, FunctionRef<void()> look) {
  class EndWait {
   public:
    explicit EndWait(Interruption& interruption) : interruption_(interruption) {}
    EndWait(const EndWait&) = delete;
    EndWait& operator=(const EndWait&) = delete;
    ~EndWait() { interruption_.end_wait(); }

   private:
    Interruption& interruption_;
  };
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (raised_) {
        return false;
      }
      waited_for_ = &buffer;
    }
    {
      const EndWait end_wait(*this);
      if (way == Way::receive ? buffer.waitRecv(never) : buffer.waitSend(never)) {
        return true;
      }
    }
    look();
  }
}

void Interruption::end_wait() {
  const std::lock_guard lock(mutex_);
  waited_for_ = nullptr;
}

Alarm::Alarm(Duration nudge_interval)
    : nudge_interval_(nudge_interval), worker_([this] { work(); }) {
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
  const TimePoint next = std::min(time, std::chrono::steady_clock::now() + nudge_interval_);
  std::unique_lock lock(mutex_);
  const Id id = next_id_++;
  pending_.emplace(id, Pending{.time = time, .next = next, .interruption = &interruption});
  if (next < wake_) {
    wake_ = next;
    lock.unlock();
    changed_.notify_one();
  }
  return id;
}

void Alarm::clear(Id id) {
  const std::lock_guard lock(mutex_);
  pending_.erase(id);
}

/// Does what is due; returns when the next is.
TimePoint Alarm::ring(TimePoint now) {
  TimePoint earliest = TimePoint::max();
  for (auto entry = pending_.begin(); entry != pending_.end();) {
    Pending& pending = entry->second;
    if (pending.time <= now) {
      pending.interruption->raise();
      entry = pending_.erase(entry);
      continue;
    }
    if (pending.next <= now) {
      pending.interruption->nudge();
      pending.next = std::min(pending.time, now + nudge_interval_);
    }
    earliest = std::min(earliest, pending.next);
    ++entry;
  }
  return earliest;
}

void Alarm::work() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    wake_ = ring(std::chrono::steady_clock::now());
    if (wake_ == TimePoint::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, wake_);
    }
  }
}

}  // namespace troupe
