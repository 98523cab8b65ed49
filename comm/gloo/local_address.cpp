#include "troupe/comm/gloo/local_address.hpp"

#include <net/if.h>
#include <sys/socket.h>

#include <memory>
#include <netdb.h>
#include <unistd.h>

namespace troupe {

namespace {

bool can_bind(const addrinfo& candidate) {
  const int descriptor = socket(candidate.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) {
    return false;
  }
  const bool bound = bind(descriptor, candidate.ai_addr, candidate.ai_addrlen) == 0;
  close(descriptor);
  return bound;
}

}  // namespace

bool is_local_address(const std::string& address) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), nullptr, &wanted, &found) != 0) {
    return false;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> candidates(found, freeaddrinfo);
  for (const addrinfo* candidate = found; candidate != nullptr; candidate = candidate->ai_next) {
    if (can_bind(*candidate)) {
      return true;
    }
  }
  return false;
}

bool is_local_interface(const std::string& name) {
  return if_nametoindex(name.c_str()) != 0;
}

}  // namespace troupe
