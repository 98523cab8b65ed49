/// Gloo writes to connections whose peer may be gone, with plain `writev`: without this such a
/// write would end the process.
#pragma once

#include <csignal>

namespace troupe {

/// While it exists, SIGPIPE does not reach this thread, nor threads that it starts; what would have
/// reached it is forgotten.
class SigpipeBlocked {
 public:
  SigpipeBlocked();
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;
  ~SigpipeBlocked();

 private:
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace troupe
