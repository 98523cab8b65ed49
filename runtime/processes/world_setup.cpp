#include "troupe/runtime/processes/world_setup.hpp"

#include "troupe/comm/host_device.hpp"

#include <spdlog/spdlog.h>

#include <thread>

namespace troupe {

namespace {

constexpr std::chrono::milliseconds timeout_max = std::chrono::hours{24 * 365};

}  // namespace

void check(const WorldOptions& options) {
  if (options.timeout <= std::chrono::milliseconds::zero() || options.timeout > timeout_max) {
    throw Error({.code = ErrorCode::bad_configuration,
                 .text = "WorldOptions::timeout is " + std::to_string(options.timeout.count()) +
                         " ms; expected more than 0 and at most a year (" +
                         std::to_string(timeout_max.count()) + " ms)"});
  }
}

/// Polling pays only where every thread that polls has a core: trainers and comm threads.
Duration choose_poll(const WorldOptions& options, int ranks) {
  if (options.poll) {
    return *options.poll;
  }
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return 2 * ranks <= cores ? std::chrono::microseconds{50} : std::chrono::microseconds{0};
}

RankEnvironment environment_of(int rank, const WorldOptions& options, Duration poll) {
  RankEnvironment environment;
  environment.rank = rank;
  environment.device = std::make_unique<HostDevice>();
  environment.waiter = std::make_shared<FutexWaiter>(poll);
  environment.timeout = options.timeout;
  environment.comm_poll = poll;
  environment.log = options.on_failure ? options.on_failure
                                       : [](const std::string& text) { spdlog::error("{}", text); };
  environment.warn = options.on_warning ? options.on_warning
                                        : [](const std::string& text) { spdlog::warn("{}", text); };
  environment.on_launch = options.on_launch;
  environment.trace = options.trace;
  return environment;
}

}  // namespace troupe
