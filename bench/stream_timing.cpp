#include "stream_timing.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace troupe::bench {

Nanoseconds time_on_streams(const std::vector<HostStream*>& streams,
                            const std::function<void()>& issue) {
  std::atomic<bool> open{false};
  for (HostStream* stream : streams) {
    stream->enqueue(
        [&open]() -> Result<Progress> { return open.load() ? Progress::done : Progress::blocked; });
  }
  issue();
  std::mutex mutex;  // held while notifying: nobody touches these when the wait is over
  std::condition_variable changed;
  std::vector<Nanoseconds> ends;
  ends.reserve(streams.size());
  for (HostStream* stream : streams) {
    stream->notify([&](const StreamReport&) {
      const Nanoseconds now = now_ns();
      const std::lock_guard lock(mutex);
      ends.push_back(now);
      changed.notify_one();
    });
  }
  const Nanoseconds begun = now_ns();
  open.store(true);
  for (HostStream* stream : streams) {
    static_cast<Wakeable*>(stream)->notify();
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ends.size() == streams.size(); });
  for (const HostStream* stream : streams) {
    if (auto failure = stream->failure()) {
      throw Error(*std::move(failure));
    }
  }
  return *std::ranges::max_element(ends) - begun;
}

}  // namespace troupe::bench
