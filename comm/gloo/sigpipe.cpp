#include "troupe/comm/gloo/sigpipe.hpp"

#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): of POSIX, has what <csignal> lacks

namespace troupe {

namespace {

sigset_t only_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

SigpipeBlocked::SigpipeBlocked() : was_pending_(is_pending()) {
  const sigset_t sigpipe = only_sigpipe();
  pthread_sigmask(SIG_BLOCK, &sigpipe, &before_);
}

SigpipeBlocked::~SigpipeBlocked() {
  if (!was_pending_ && is_pending()) {
    const sigset_t sigpipe = only_sigpipe();
    const timespec at_once{};
    sigtimedwait(&sigpipe, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace troupe
