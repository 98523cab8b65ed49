/// A client of a store's server that says what it is told to, byte by byte, on a plain socket.
#pragma once

#include "troupe/comm/store/handshake.hpp"
#include "troupe/comm/store/protocol.hpp"
#include "troupe/comm/waiting.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::test {

/// A file descriptor with an owner.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(); }
  int get() const { return number_; }
  int release() {
    const int number = number_;
    number_ = -1;
    return number;
  }
  void reset(int number = -1);

 private:
  int number_;
};

/// A socket connected to this port on loopback; an empty one if nobody listens there.
/// `receive_buffer`: bytes, 0 as the kernel likes.
Descriptor connect_to(std::uint16_t port, int receive_buffer = 0);

class RawClient {
 public:
  explicit RawClient(std::uint16_t port, int receive_buffer = 0);

  /// False: the other side no longer takes them.
  bool send(std::string_view bytes);
  /// The next frame's body; nothing: the other side has closed the connection, or has not said
  /// anything by the deadline.
  std::optional<std::string> receive(TimePoint deadline);
  /// Whether the other side closes the connection by the deadline, whatever it says before.
  bool closed(TimePoint deadline);
  /// The whole handshake; false if it was refused. The frames sent are in `sent`.
  bool join(const std::string& secret, TimePoint deadline);

  std::string sent{};

 private:
  /// Bytes read: 0 when closed, -1 when late.
  long read_some(TimePoint deadline);

  Descriptor socket_;
  store::FrameReader reader_{std::size_t{1} << 30};
};

}  // namespace troupe::test
