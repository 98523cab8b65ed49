#include "troupe/runtime/processes/host.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>
#include <netdb.h>
#include <system_error>
#include <unistd.h>

namespace troupe {

namespace {

Failure unreachable(const std::string& host, const std::string& why) {
  return {.code = ErrorCode::network, .text = "no way from this host to " + host + ": " + why};
}

/// The own end of a connectionless socket that is bound for `to`.
Result<std::string> own_end(const addrinfo& to, const std::string& host) {
  const int socket = ::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) {
    return unreachable(host, std::generic_category().message(errno));
  }
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  const bool found = ::connect(socket, to.ai_addr, to.ai_addrlen) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  const int error = errno;
  ::close(socket);
  std::array<char, NI_MAXHOST> text{};
  if (!found) {
    return unreachable(host, std::generic_category().message(error));
  }
  if (const int wrong = ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(),
                                      text.size(), nullptr, 0, NI_NUMERICHOST);
      wrong != 0) {
    return unreachable(host, gai_strerror(wrong));
  }
  return std::string(text.data());
}

}  // namespace

std::string process_name() {
  std::array<char, 256> host{};
  const bool known = ::gethostname(host.data(), host.size() - 1) == 0;
  return "pid " + std::to_string(::getpid()) + " on " + (known ? host.data() : "an unnamed host");
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Result<std::string> address_towards(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int wrong = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (wrong != 0) {
    return unreachable(host, gai_strerror(wrong));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  Result<std::string> address = unreachable(host, "it has no address");
  for (const addrinfo* each = found; each != nullptr && !address; each = each->ai_next) {
    address = own_end(*each, host);
  }
  return address;
}

}  // namespace troupe
