/// What fault_rank is told, and how its tests tell it.
#pragma once

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace troupe::test {

/// Places in a step where a fault may happen.
inline constexpr int points_per_step = 11;

struct RankOptions {
  int steps = 4;
  std::chrono::milliseconds timeout{2000};
  int strategy = 2;  ///< row of its table: full_shard
  std::string fault = "none";
  int at = 0;
  std::string trace{};
  int cycles = 1;

  /// Throws `std::exception`.
  static RankOptions parse(const std::vector<std::string>& words) {
    RankOptions options;
    for (const std::string& word : words) {
      const auto equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
      if (name == "steps") {
        options.steps = std::stoi(value);
      } else if (name == "timeout_ms") {
        options.timeout = std::chrono::milliseconds{std::stoi(value)};
      } else if (name == "strategy") {
        options.strategy = std::stoi(value);
      } else if (name == "fault") {
        options.fault = value;
      } else if (name == "at") {
        options.at = std::stoi(value);
      } else if (name == "trace") {
        options.trace = value;
      } else if (name == "cycles") {
        options.cycles = std::stoi(value);
      } else {
        throw std::runtime_error("fault_rank does not know '" + word + "'");
      }
    }
    return options;
  }

  std::vector<std::string> words() const {
    std::vector<std::string> words{"steps=" + std::to_string(steps),
                                   "timeout_ms=" + std::to_string(timeout.count()),
                                   "strategy=" + std::to_string(strategy),
                                   "fault=" + fault,
                                   "at=" + std::to_string(at),
                                   "cycles=" + std::to_string(cycles)};
    if (!trace.empty()) {
      words.push_back("trace=" + trace);
    }
    return words;
  }
};

/// "7 descriptors, 3 threads, 0 in /dev/shm": of this process; shared memory of any world.
inline std::string what_is_held() {
  const auto count = [](const char* folder, std::string_view part) {
    int found = 0;
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(folder, absent)) {
      found += entry.path().filename().string().find(part) != std::string::npos ? 1 : 0;
    }
    return std::to_string(found);
  };
  return count("/proc/self/fd", "") + " descriptors, " + count("/proc/self/task", "") +
         " threads, " + count("/dev/shm", "troupe") + " in /dev/shm";
}

}  // namespace troupe::test
