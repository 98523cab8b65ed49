/// A port of the loopback address that nobody else gets as long as this object lives, but that a
/// rank of the job can listen at.
///
/// It is taken by a socket that never listens. With SO_REUSEADDR on both, another socket may be
/// bound to the same port and listen; the kernel hands it out to nobody who asks for any port.
#pragma once

#include "troupe/runtime/launch/descriptor.hpp"

#include <cstdint>

namespace troupe::launch {

class FreePort {
 public:
  /// Throws `std::system_error`.
  FreePort();
  std::uint16_t number() const { return number_; }

 private:
  Descriptor socket_;
  std::uint16_t number_ = 0;
};

}  // namespace troupe::launch
