#include "troupe/comm/store/io_thread.hpp"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): of POSIX, has what <csignal> lacks

namespace troupe::store {

void close_on_exec(int descriptor) {
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

IoThread::IoThread() : work_(context_.get_executor()), scratch_(std::make_unique<Scratch>()) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // a new thread begins with its maker's mask
  thread_ = std::thread([this] { context_.run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void IoThread::stop() {
  context_.stop();
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace troupe::store
