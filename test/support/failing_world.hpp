/// Worlds that are meant to fail: what `run` throws, what each rank hears, how long it took; what
/// the process holds before and after.
#pragma once

#include "troupe/runtime/world.hpp"

#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troupe::test {

struct Outcome {
  std::optional<Failure> failure;  ///< thrown by `run`
  /// Per rank: the text of what left its body; empty if the body returned.
  std::vector<std::string> heard;
  std::chrono::steady_clock::duration took{};
  std::vector<std::string> logged;  ///< what `on_failure` received

  std::string text() const { return failure ? failure->text : std::string(); }
};

constexpr std::chrono::seconds failing_world_timeout{20};

/// Runs `body` on every rank and takes down how it ends.
inline Outcome outcome_of(int ranks,
                          const std::function<void(World&)>& body,
                          std::chrono::milliseconds timeout = failing_world_timeout) {
  Outcome outcome;
  outcome.heard.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  WorldOptions options{.timeout = timeout, .on_warning = [](const std::string&) {}};
  options.on_failure = [&](const std::string& text) {
    const std::scoped_lock lock(mutex);
    outcome.logged.push_back(text);
  };
  const auto began = std::chrono::steady_clock::now();
  try {
    World::local(ranks, options).run([&](World& world) {
      try {
        body(world);
      } catch (const std::exception& exception) {
        outcome.heard[static_cast<std::size_t>(world.rank())] = exception.what();
        throw;
      }
    });
  } catch (const Error& error) {
    outcome.failure = error.failure();
  }
  outcome.took = std::chrono::steady_clock::now() - began;
  return outcome;
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// Threads of this process. One that was joined may still be listed for a moment.
inline std::ptrdiff_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}
inline std::ptrdiff_t open_file_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

}  // namespace troupe::test
