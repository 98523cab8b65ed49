#include "troupe/comm/host_stream.hpp"

#include <exception>
#include <pthread.h>
#include <utility>

namespace troupe {

namespace {

/// A blocked operation is tried at least this often, for the sake of deadlines inside it.
constexpr Duration retry_interval = std::chrono::milliseconds(20);

/// Linux keeps 15 characters of a thread's name.
constexpr std::size_t thread_name_length_max = 15;

/// The stream whose worker this thread is.
thread_local const HostStream* stream_of_this_thread = nullptr;

}  // namespace

/// Blocked until an event of another stream is done. Listens to that stream while it is the head.
class HostStream::EventWait {
 public:
  EventWait(HostStream& waiting, Event event)
      : waiting_(waiting), event_(event), other_(dynamic_cast<HostStream*>(event.stream)) {}
  EventWait(const EventWait&) = delete;
  EventWait& operator=(const EventWait&) = delete;
  ~EventWait() {
    if (listening_) {
      other_->forget(waiting_);
    }
  }

  Result<Progress> operator()() {
    if (event_.done()) {
      return Progress::done;
    }
    if (auto failure = event_.stream->failure()) {
      // It may have reached the event and failed since the first look.
      return event_.done() ? Result<Progress>(Progress::done) : *std::move(failure);
    }
    if (other_ != nullptr && !listening_) {
      listening_ = other_->wake_at(event_.point, waiting_);
      if (!listening_) {
        return (*this)();  // done or failed a moment ago
      }
    }
    return Progress::blocked;
  }

 private:
  HostStream& waiting_;
  Event event_;
  HostStream* other_;
  bool listening_ = false;
};

HostStream::HostStream(std::string name, StreamWorkers workers, const Clock& clock)
    : name_(std::move(name)), workers_(workers), clock_(clock) {
  if (workers_ == StreamWorkers::threads) {
    worker_ = std::thread([this] { work(); });
    pthread_setname_np(worker_.native_handle(), name_.substr(0, thread_name_length_max).c_str());
  }
}

HostStream::~HostStream() {
  stop();
}

// ---- issuing ------------------------------------------------------------------------------------

void HostStream::run(std::function<void()> work) {
  enqueue([work = std::move(work)]() -> Result<Progress> {
    work();
    return Progress::done;
  });
}

void HostStream::enqueue(HostOperation operation) {
  push({.operation = std::move(operation), .callback = nullptr, .point = 0});
}

void HostStream::wait(Event event) {
  if (event.stream == this || event.done()) {
    return;
  }
  enqueue([state = std::make_shared<EventWait>(*this, event)] { return (*state)(); });
}

void HostStream::notify(std::function<void(const StreamReport&)> callback) {
  push({.operation = nullptr, .callback = std::move(callback)});
}

void HostStream::push(Item item) {
  std::unique_lock lock(mutex_);
  if (item.operation) {
    item.point = issued_.load(std::memory_order_relaxed) + 1;
    issued_.store(item.point, std::memory_order_release);
  }
  if (drained_) {
    lock.unlock();
    if (item.callback) {
      deliver(item.callback);
    }
    return;
  }
  const bool was_empty = queue_.empty();
  queue_.push_back(std::move(item));
  lock.unlock();
  if (was_empty) {
    notify();
  }
}

void HostStream::subscribe(Wakeable& waiter) {
  const std::lock_guard lock(mutex_);
  subscribers_.push_back(&waiter);
}

std::optional<Failure> HostStream::failure() const {
  if (!failed_.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool HostStream::wake_at(std::uint64_t point, Wakeable& waiter) {
  const std::lock_guard lock(mutex_);
  if (failure_ || reached_.load(std::memory_order_relaxed) >= point) {
    return false;
  }
  awaited_.push_back({point, &waiter});
  return true;
}

void HostStream::forget(Wakeable& waiter) {
  const std::lock_guard lock(mutex_);
  std::erase_if(awaited_, [&waiter](const Awaited& awaited) { return awaited.waiter == &waiter; });
}

// ---- running ------------------------------------------------------------------------------------

void HostStream::notify() {
  poked_.store(true, std::memory_order_release);
  waiter_.notify();
}

void HostStream::work() {
  stream_of_this_thread = this;
  const auto poked = [this] {
    return poked_.load(std::memory_order_acquire) || stopping_.load(std::memory_order_acquire);
  };
  while (!stopping_.load(std::memory_order_acquire)) {
    poked_.exchange(false, std::memory_order_acq_rel);
    switch (advance()) {
      case Advance::ran:
        break;
      case Advance::blocked:
        waiter_.wait(poked, std::chrono::steady_clock::now() + retry_interval);
        break;
      case Advance::empty:
        waiter_.wait(poked, TimePoint::max());
        break;
    }
  }
  drain();
}

bool HostStream::step() {
  poked_.exchange(false, std::memory_order_acq_rel);
  return advance() == Advance::ran;
}

bool HostStream::ready() const {
  return !idle() && (!begun_ || poked_.load(std::memory_order_acquire));
}

bool HostStream::idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty();
}

HostStream::Advance HostStream::advance() {
  Item* item = nullptr;
  bool failed = false;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      return Advance::empty;
    }
    item = &queue_.front();  // stays in place while others append
    failed = failure_.has_value();
  }
  if (item->callback) {
    deliver(item->callback);
    pop();
    return Advance::ran;
  }
  if (!begun_) {
    begun_ = true;
    started_ = clock_.now();
  }
  if (!failed) {
    const Result<Progress> result = attempt(item->operation);
    if (!result.ok()) {
      fail(result.failure());  // before the operation is destroyed: it may ask how the stream ended
    } else if (result.value() == Progress::blocked) {
      return Advance::blocked;
    }
  }
  finished_ = clock_.now();
  begun_ = false;
  item->operation = nullptr;
  pop();
  return Advance::ran;
}

Result<Progress> HostStream::attempt(HostOperation& operation) {
  try {
    return operation();
  } catch (const Error& error) {
    return error.failure();
  } catch (const std::exception& exception) {
    return failure_of(exception.what());
  } catch (...) {
    return failure_of("an exception that is no std::exception");
  }
}

Failure HostStream::failure_of(const std::string& text) const {
  return {.code = ErrorCode::device, .text = "stream '" + name_ + "': " + text};
}

void HostStream::deliver(const std::function<void(const StreamReport&)>& callback) {
  callback({.failure = failure(), .started = started_, .finished = finished_});
}

/// Removes the head, which is over.
void HostStream::pop() {
  Item item;  // destroyed after the lock is given back
  const std::lock_guard lock(mutex_);
  item = std::move(queue_.front());
  queue_.pop_front();
  if (item.callback || failure_) {
    return;
  }
  reached_.store(item.point, std::memory_order_release);
  std::erase_if(awaited_, [&item](const Awaited& awaited) {
    const bool due = awaited.point <= item.point;
    if (due) {
      awaited.waiter->notify();
    }
    return due;
  });
  for (Wakeable* subscriber : subscribers_) {
    subscriber->notify();
  }
}

/// The first failure stays.
void HostStream::fail(Failure failure) {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    return;
  }
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
  for (const Awaited& awaited : awaited_) {
    awaited.waiter->notify();
  }
  awaited_.clear();
  for (Wakeable* subscriber : subscribers_) {
    subscriber->notify();
  }
}

/// The worker touches no item any more once the queue is empty, and takes the lock before the next.
Result<void> HostStream::recover() {
  const std::lock_guard lock(mutex_);
  if (drained_ || stopping_.load(std::memory_order_acquire)) {
    return Failure{.code = ErrorCode::device,
                   .text = "stream '" + name_ + "' was stopped and cannot be used again"};
  }
  if (!queue_.empty()) {
    return Failure{.code = ErrorCode::device,
                   .text = "stream '" + name_ + "' still has work, so it cannot be recovered"};
  }
  if (failure_) {
    reached_.store(issued_.load(std::memory_order_relaxed), std::memory_order_release);
    failure_.reset();
    failed_.store(false, std::memory_order_release);
  }
  return {};
}

// ---- ending -------------------------------------------------------------------------------------

void HostStream::stop() {
  stopping_.store(true, std::memory_order_release);
  waiter_.notify();
  if (stream_of_this_thread == this) {
    return;
  }
  const std::lock_guard lock(stop_mutex_);
  if (worker_.joinable()) {
    worker_.join();
  } else if (workers_ == StreamWorkers::manual) {
    drain();
  }
}

/// Fails the stream and drops what is queued.
void HostStream::drain() {
  fail({.code = ErrorCode::device, .text = "stream '" + name_ + "' was stopped"});
  for (;;) {
    while (advance() == Advance::ran) {
    }
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      drained_ = true;
      return;
    }
  }
}

}  // namespace troupe
