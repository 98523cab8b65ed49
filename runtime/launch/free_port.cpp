#include "troupe/runtime/launch/free_port.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace troupe::launch {

FreePort::FreePort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (!socket_.is_open() ||
      ::setsockopt(socket_.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket_.number(), any, size) != 0 ||
      ::getsockname(socket_.number(), any, &size) != 0) {
    throw_errno("a free port");
  }
  number_ = ntohs(address.sin_port);
}

}  // namespace troupe::launch
