#include "held_memory.hpp"

#include <sys/mman.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <unistd.h>

namespace troupe::test {

namespace {

std::atomic<HeldMemory*> held{nullptr};
struct sigaction previous{};

}  // namespace

/// Runs on the reader's thread, in the middle of its read.
struct FaultHandler {
  static void handle(int signal, siginfo_t* info, void* /*context*/) {
    HeldMemory* memory = held.load();
    const auto* address = static_cast<const std::byte*>(info->si_addr);
    if (memory == nullptr || address < memory->data_ || address >= memory->data_ + memory->bytes_) {
      sigaction(signal, &previous, nullptr);  // a real fault: happens again
      return;
    }
    memory->entered_.store(true);
    while (!memory->free_.load()) {
      const timespec pause{0, 100000};
      nanosleep(&pause, nullptr);
    }
  }
};

HeldMemory::HeldMemory(std::size_t bytes) : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
  bytes_ = ((bytes + page_ - 1) / page_ + 1) * page_;
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::abort();
  }
  data_ = static_cast<std::byte*>(memory);
  held.store(this);
  struct sigaction action{};
  action.sa_sigaction = &FaultHandler::handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous);
  mprotect(data_ + bytes_ - page_, page_, PROT_NONE);
}

HeldMemory::~HeldMemory() {
  let_go();
  held.store(nullptr);
  sigaction(SIGSEGV, &previous, nullptr);
  munmap(data_, bytes_);
}

void HeldMemory::let_go() {
  mprotect(data_ + bytes_ - page_, page_, PROT_READ | PROT_WRITE);
  free_.store(true);
}

}  // namespace troupe::test
