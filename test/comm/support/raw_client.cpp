#include "raw_client.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <poll.h>
#include <unistd.h>

namespace troupe::test {

void Descriptor::reset(int number) {
  if (number_ >= 0) {
    close(number_);
  }
  number_ = number;
}

Descriptor connect_to(std::uint16_t port, int receive_buffer) {
  Descriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(made.get() >= 0);
  if (receive_buffer > 0) {
    setsockopt(made.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    made.reset();
  }
  return made;
}

RawClient::RawClient(std::uint16_t port, int receive_buffer)
    : socket_(connect_to(port, receive_buffer)) {
  REQUIRE(socket_.get() >= 0);
}

bool RawClient::send(std::string_view bytes) {
  sent += bytes;
  while (!bytes.empty()) {
    const auto done = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (done <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  return true;
}

long RawClient::read_some(TimePoint deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::steady().now());
  pollfd waited{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (poll(&waited, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0))) <= 0) {
    return -1;
  }
  std::array<char, 16384> bytes;
  const auto got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
  if (got <= 0) {
    return 0;
  }
  reader_.feed({bytes.data(), static_cast<std::size_t>(got)});
  return got;
}

std::optional<std::string> RawClient::receive(TimePoint deadline) {
  while (true) {
    if (const auto body = reader_.next()) {
      return std::string(*body);
    }
    if (read_some(deadline) <= 0) {
      return std::nullopt;
    }
  }
}

bool RawClient::closed(TimePoint deadline) {
  long got = 1;
  while (got > 0) {
    got = read_some(deadline);
  }
  return got == 0;
}

bool RawClient::join(const std::string& secret, TimePoint deadline) {
  store::ClientHandshake handshake(secret, 0, 0, "raw client");
  send(handshake.hello());
  const auto challenge = receive(deadline);
  if (!challenge) {
    return false;
  }
  const auto proof = handshake.challenge(*challenge);
  if (!proof) {
    return false;
  }
  send(proof.value());
  const auto welcome = receive(deadline);
  return welcome && handshake.welcome(*welcome);
}

}  // namespace troupe::test
