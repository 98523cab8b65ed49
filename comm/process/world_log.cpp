#include "troupe/comm/process/world_log.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

WorldLog::WorldLog(Store& store,
                   int world_size,
                   Duration silence_limit,
                   std::function<void()> on_change)
    : store_(store),
      silence_limit_(std::max<Duration>(silence_limit, store_limit)),
      on_change_(std::move(on_change)),
      history_(world_size) {}

WorldLog::~WorldLog() {
  close();
}

void WorldLog::close() {
  // The clerk's last words need the store; only then may it go.
  const TimePoint deadline = Clock::steady().now() + store_limit;
  while (!clerk_.idle() && Clock::steady().now() < deadline) {
    std::this_thread::sleep_for(Clerk::again_after);
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  store_.close();
  if (reader_.joinable()) {
    reader_.join();
  }
  clerk_.stop();
}

void WorldLog::start() {
  reader_ = std::thread([this] { read(); });
}

void WorldLog::say(WorldEvent event) {
  clerk_.once([this, entry = encode(std::move(event))] {
    if (!lost()) {
      worked(store_.append(name, entry, soon()));
    }
  });
}

void WorldLog::set(std::string key, std::string value) {
  clerk_.once([this, key = std::move(key), value = std::move(value)] {
    if (!lost()) {
      worked(store_.set(key, value, soon()));
    }
  });
}

void WorldLog::erase(std::string key) {
  clerk_.once([this, key = std::move(key)] {
    if (!lost()) {
      worked(store_.erase(key, soon()));
    }
  });
}

std::map<int, std::string> WorldLog::look(const std::string& prefix,
                                          const std::vector<int>& ranks) {
  std::map<int, std::string> values;
  for (const int rank : ranks) {
    if (lost()) {
      break;
    }
    auto looked = store_.look(prefix + std::to_string(rank), soon());
    if (!worked(looked)) {
      continue;
    }
    if (std::optional<std::string>& value = looked.value()) {
      values.emplace(rank, std::move(*value));
    }
  }
  return values;
}

bool WorldLog::wait(FunctionRef<bool(const WorldHistory&)> ready, TimePoint deadline) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return ready(history_); });
}

void WorldLog::notify() const {
  // Whoever is about to wait has looked already, or has not: in any case not in between.
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::optional<std::string> WorldLog::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void WorldLog::read() {
  constexpr std::chrono::seconds turn{10};  // a read ends early when the store is closed
  std::uint64_t next = 0;
  for (;;) {
    const auto entries = store_.read(name, next, Clock::steady().now() + turn);
    if (!entries) {
      if (entries.failure().code == ErrorCode::timeout) {
        continue;  // nothing has happened
      }
      lose(entries.failure().text);
      return;
    }
    for (const std::string& entry : entries.value()) {
      {
        const std::lock_guard lock(mutex_);
        history_.apply(entry);
        changed_.notify_all();
      }
      ++next;
      on_change_();
    }
  }
}

void WorldLog::lose(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (lost_ || stop_) {
      return;
    }
    lost_ = why;
    changed_.notify_all();
  }
  on_change_();
}

template <class T>
bool WorldLog::worked(const Result<T>& result) {
  if (!result) {
    lose(result.failure().text);
  }
  return result.ok();
}

}  // namespace troupe
