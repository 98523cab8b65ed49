/// A file descriptor that closes with its owner; and pipes of such.
#pragma once

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace troupe::launch {

[[noreturn]] inline void throw_errno(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void close() {
    if (is_open()) {
      ::close(std::exchange(number_, -1));
    }
  }

 private:
  int number_ = -1;
};

/// None of it is inherited by a program that is started.
struct Pipe {
  Descriptor reader;
  Descriptor writer;

  /// Throws `std::system_error`.
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw_errno("pipe2");
    }
    reader = Descriptor(ends[0]);
    writer = Descriptor(ends[1]);
  }
};

}  // namespace troupe::launch
