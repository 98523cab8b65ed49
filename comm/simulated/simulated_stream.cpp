#include "troupe/comm/simulated/simulated_stream.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

SimulatedStream::SimulatedStream(std::string name, const SimulatedSurroundings& surroundings)
    : name_(std::move(name)), surroundings_(surroundings) {}

SimulatedStream::~SimulatedStream() {
  stop();
}

// ---- issuing ------------------------------------------------------------------------------------

void SimulatedStream::run(const char* what,
                          std::uint64_t number,
                          Duration duration,
                          std::vector<Access> accesses,
                          std::function<void()> work) {
  auto start = [this, user = AccessUser{what, number, surroundings_.rank}, duration,
                accesses = std::move(accesses), work = std::move(work)] {
    if (surroundings_.fault) {
      if (auto failure = surroundings_.fault(name_)) {
        finish(std::move(failure));
        return;
      }
    }
    if (duration == Duration::zero()) {
      surroundings_.accesses->touch(user, accesses);
      work();
      finish();
      return;
    }
    access_ = surroundings_.accesses->begin(user, accesses);
    timer_ = surroundings_.timeline->after(duration, this, [this, duration, work] {
      timer_ = 0;
      surroundings_.accesses->end(std::exchange(access_, 0));
      busy_time_ += duration;
      work();
      finish();
    });
  };
  push({.start = std::move(start), .dropped = nullptr, .callback = nullptr});
}

void SimulatedStream::enqueue(std::function<void()> start, std::function<void()> dropped) {
  push({.start = std::move(start), .dropped = std::move(dropped), .callback = nullptr});
}

void SimulatedStream::wait(Event event) {
  if (event.stream == this || event.done()) {
    return;
  }
  push({.start = [this, event] { start_wait(event); }, .dropped = nullptr, .callback = nullptr});
}

void SimulatedStream::notify(std::function<void(const StreamReport&)> callback) {
  push({.start = nullptr, .dropped = nullptr, .callback = std::move(callback)});
}

void SimulatedStream::push(Item item) {
  surroundings_.timeline->touch(this);
  if (!item.callback) {
    item.point = ++issued_;
  }
  queue_.push_back(std::move(item));
  pump();
}

// ---- running ------------------------------------------------------------------------------------

void SimulatedStream::pump() {
  if (std::exchange(pumping_, true)) {
    return;
  }
  while (!queue_.empty() && !running_) {
    surroundings_.timeline->touch(this);
    if (queue_.front().callback) {
      const Item item = std::move(queue_.front());
      queue_.pop_front();
      item.callback({.failure = failure_, .started = started_, .finished = finished_});
    } else if (failure_) {
      const Item item = std::move(queue_.front());
      queue_.pop_front();
      started_ = finished_ = surroundings_.timeline->now();
      if (item.dropped) {
        item.dropped();
      }
    } else {
      running_ = true;
      started_ = surroundings_.timeline->now();
      const auto start = queue_.front().start;  // it may end, and be gone, before it returns
      start();
    }
  }
  pumping_ = false;
}

void SimulatedStream::start_wait(Event event) {
  waiting_ = event;
  if (!event.done() && !event.stream->failure()) {
    auto* other = dynamic_cast<SimulatedStream*>(event.stream);
    if (other == nullptr) {
      waiting_.reset();
      finish(Failure{.code = ErrorCode::misuse,
                     .text = "stream '" + name_ + "' cannot wait for '" + event.stream->name() +
                             "', which is not simulated"});
      return;
    }
    other->awaited_.push_back({event.point, this});
    return;
  }
  wake();
}

/// The event that the head waits for is done, or never will be.
void SimulatedStream::wake() {
  if (!waiting_) {
    return;
  }
  const Event event = *waiting_;
  waiting_.reset();
  finish(event.done() ? std::nullopt : event.stream->failure());
}

void SimulatedStream::finish(std::optional<Failure> failure) {
  surroundings_.timeline->touch(this);
  if (!running_) {
    return;  // dropped meanwhile
  }
  running_ = false;
  finished_ = surroundings_.timeline->now();
  const Item item = std::move(queue_.front());
  queue_.pop_front();
  if (failure) {
    fail(*failure);
  } else {
    reached_ = item.point;
    std::vector<SimulatedStream*> due;
    std::erase_if(awaited_, [&](const Awaited& awaited) {
      if (awaited.point > reached_) {
        return false;
      }
      due.push_back(awaited.stream);
      return true;
    });
    for (SimulatedStream* stream : due) {
      stream->wake();
    }
    for (Wakeable* subscriber : subscribers_) {
      subscriber->notify();
    }
  }
  pump();
}

/// The first failure stays.
void SimulatedStream::fail(const Failure& failure) {
  if (failure_) {
    return;
  }
  failure_ = failure;
  const std::vector<Awaited> awaited = std::exchange(awaited_, {});
  for (const Awaited& each : awaited) {
    each.stream->wake();
  }
  for (Wakeable* subscriber : subscribers_) {
    subscriber->notify();
  }
}

Result<void> SimulatedStream::recover() {
  surroundings_.timeline->touch(this);
  if (stopped_ || !idle()) {
    return Failure{.code = ErrorCode::device,
                   .text = "stream '" + name_ + "' " +
                           (stopped_ ? "was stopped and cannot be used again"
                                     : "still has work, so it cannot be recovered")};
  }
  if (failure_) {
    failure_.reset();
    reached_ = issued_;
  }
  return {};
}

void SimulatedStream::stop() {
  stopped_ = true;
  fail({.code = ErrorCode::device, .text = "stream '" + name_ + "' was stopped"});
  if (running_) {
    running_ = false;
    surroundings_.timeline->cancel(std::exchange(timer_, 0));
    surroundings_.accesses->end(std::exchange(access_, 0));
    if (waiting_) {
      if (auto* other = dynamic_cast<SimulatedStream*>(waiting_->stream)) {
        std::erase_if(other->awaited_,
                      [this](const Awaited& awaited) { return awaited.stream == this; });
      }
      waiting_.reset();
    }
    const Item item = std::move(queue_.front());
    queue_.pop_front();
    if (item.dropped) {
      item.dropped();
    }
  }
  pump();
}

}  // namespace troupe
