/// Runs a body on every rank of a world of threads and collects what it finds wrong; what ranks
/// launch; streams that are held up.
#pragma once

#include "troupe/comm/host_stream.hpp"
#include "troupe/runtime/rank_context.hpp"
#include "troupe/runtime/world.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::test {

/// What is found on the ranks' threads and streams, checked when they have ended.
class Findings {
 public:
  void expect(bool holds, const std::string& text) {
    constexpr std::size_t enough = 10;
    const std::scoped_lock lock(mutex_);
    if (!holds && count_++ < enough) {
      text_ += text + "\n";
    }
  }
  template <class A, class B>
  void equal(const A& found, const B& right, const std::string& what) {
    expect(found == right, what + ": " + std::to_string(found) + ", not " + std::to_string(right));
  }
  std::string text() const { return text_; }

 private:
  std::mutex mutex_;
  std::size_t count_ = 0;
  std::string text_;
};

/// Launches per rank. Each rank's comm thread writes its own list; read after the world has ended,
/// or by the rank's trainer when everything is launched that it asked for.
struct LaunchLog {
  explicit LaunchLog(int ranks) : of_rank(static_cast<std::size_t>(ranks)) {}
  std::vector<std::vector<LaunchRecord>> of_rank;

  bool same_on_all_ranks() const {
    return std::ranges::all_of(of_rank, [&](const auto& log) { return log == of_rank[0]; });
  }
  /// Buckets in launch order, of one operation.
  std::vector<BucketId> buckets(Collective op, std::size_t rank = 0) const {
    std::vector<BucketId> buckets;
    for (const LaunchRecord& record : of_rank[rank]) {
      if (record.op == op && record.bucket != no_bucket) {
        buckets.push_back(record.bucket);
      }
    }
    return buckets;
  }
};

/// Runs `body` on every rank. Returns what was found wrong, or how the world failed; empty if well.
inline std::string on_ranks(int ranks,
                            const std::function<void(World&, Findings&)>& body,
                            LaunchLog* launches = nullptr,
                            Trace* trace = nullptr) {
  Findings findings;
  WorldOptions options;
  options.timeout = std::chrono::seconds{20};
  options.on_warning = [](const std::string&) {};
  options.trace = trace;
  if (launches != nullptr) {
    options.on_launch = [launches](int rank, const LaunchRecord& record) {
      launches->of_rank[static_cast<std::size_t>(rank)].push_back(record);
    };
  }
  try {
    World::local(ranks, options).run([&](World& world) { body(world, findings); });
  } catch (const Error& error) {
    findings.expect(false, error.what());
  }
  return findings.text();
}

/// Holds a stream up until it is opened.
class Gate {
 public:
  void close(HostStream& stream) {
    stream.enqueue([open = open_]() -> Result<Progress> {
      return open->load() ? Progress::done : Progress::blocked;
    });
    streams_.push_back(&stream);
  }
  void open() {
    open_->store(true);
    for (HostStream* stream : streams_) {
      stream->notify();
    }
  }
  ~Gate() { open(); }
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

 private:
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
  std::vector<HostStream*> streams_;
};

/// "gather" or "reduce": where the rank's collectives run.
inline HostStream& stream_of(World& world, std::string_view name) {
  for (HostStream* stream : world.host_device().streams()) {
    if (stream->name() == name) {
      return *stream;
    }
  }
  throw Error({.code = ErrorCode::misuse, .text = "no such stream"});
}

}  // namespace troupe::test
