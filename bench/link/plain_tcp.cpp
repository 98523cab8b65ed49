#include "link_ranks.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <future>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace troupe::bench {

namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {
    if (descriptor < 0) {
      fail("socket");
    }
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(descriptor_); }
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

sockaddr_in endpoint(const Host& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host.address.c_str(), &address.sin_addr) != 1) {
    throw std::invalid_argument(host.address + " is no IPv4 address");
  }
  return address;
}

void send_all(int socket, std::int64_t bytes) {
  const std::vector<char> chunk(std::size_t{1} << 20);
  while (bytes > 0) {
    const auto wanted = std::min<std::int64_t>(bytes, static_cast<std::int64_t>(chunk.size()));
    const ssize_t sent = send(socket, chunk.data(), static_cast<std::size_t>(wanted), MSG_NOSIGNAL);
    if (sent <= 0) {
      fail("send");
    }
    bytes -= sent;
  }
}

void receive_all(int socket, std::int64_t bytes) {
  std::vector<char> chunk(std::size_t{1} << 20);
  while (bytes > 0) {
    const ssize_t received = recv(socket, chunk.data(), chunk.size(), 0);
    if (received <= 0) {
      fail("recv");
    }
    bytes -= received;
  }
}

/// Both directions at once, on one connection.
void exchange(int socket, std::int64_t bytes) {
  auto sent = std::async(std::launch::async, [&] { send_all(socket, bytes); });
  receive_all(socket, bytes);
  sent.get();
}

}  // namespace

Nanoseconds plain_tcp(const std::vector<Host>& hosts, std::int64_t bytes, int count) {
  std::promise<std::uint16_t> listening;
  Nanoseconds begin = 0;
  auto server = std::async(std::launch::async, [&] {
    hosts.at(0).run([&] {
      const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address = endpoint(hosts[0], 0);
      socklen_t length = sizeof(address);
      auto* const raw = reinterpret_cast<sockaddr*>(&address);
      if (bind(listener.get(), raw, length) != 0 || listen(listener.get(), 1) != 0 ||
          getsockname(listener.get(), raw, &length) != 0) {
        fail("listen");
      }
      listening.set_value(ntohs(address.sin_port));
      const Socket connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      begin = now_ns();
      exchange(connection.get(), bytes * count);
    });
  });
  hosts.at(1).run([&] {
    const Socket connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = endpoint(hosts[0], listening.get_future().get());
    if (connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      fail("connect");
    }
    exchange(connection.get(), bytes * count);
  });
  server.get();
  return now_ns() - begin;
}

}  // namespace troupe::bench
