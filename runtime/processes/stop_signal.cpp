#include "troupe/runtime/processes/stop_signal.hpp"

#include <atomic>
#include <csignal>
#include <mutex>

namespace troupe {

namespace {

// A handler sees nothing but what is global.
std::atomic<bool> stop_wished{false};
static_assert(std::atomic<bool>::is_always_lock_free);

std::mutex handler_mutex;  // guards what follows
int users = 0;
struct sigaction previous{};

extern "C" void wish_to_stop(int /*signal*/) {
  stop_wished.store(true);
}

}  // namespace

StopSignal::StopSignal() {
  const std::lock_guard lock(handler_mutex);
  if (users++ > 0) {
    return;
  }
  stop_wished.store(false);
  struct sigaction action{};
  action.sa_handler = wish_to_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &previous);
}

StopSignal::~StopSignal() {
  const std::lock_guard lock(handler_mutex);
  if (--users == 0) {
    sigaction(SIGTERM, &previous, nullptr);
  }
}

bool StopSignal::came() {
  return stop_wished.load();
}

}  // namespace troupe
