#include "cutting_proxy.hpp"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <poll.h>
#include <vector>

namespace troupe::test {

CuttingProxy::CuttingProxy(std::uint16_t server_port)
    : server_port_(server_port), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
  REQUIRE(listen(listener_.get(), 256) == 0);
  REQUIRE(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

CuttingProxy::~CuttingProxy() {
  ended_ = true;
  thread_.join();
}

void CuttingProxy::cut_after(std::uint32_t seed, int bytes) {
  const std::lock_guard lock(mutex_);
  random_.seed(seed);
  life_bytes_ = bytes;
}

void CuttingProxy::stop_cutting() {
  const std::lock_guard lock(mutex_);
  life_bytes_ = 0;
  cut_all_ = true;  // those that are to be cut some day
}

long CuttingProxy::draw_life() {
  const std::lock_guard lock(mutex_);
  return life_bytes_ == 0 ? -1 : static_cast<long>(random_() % static_cast<unsigned>(life_bytes_));
}

void CuttingProxy::accept_one() {
  Descriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (client.get() < 0 || kept_out_) {
    return;
  }
  Descriptor server = connect_to(server_port_);
  if (server.get() < 0) {
    return;  // it has gone
  }
  ++connections_;
  pairs_.push_back({std::move(client), std::move(server), draw_life()});
}

// False: the pair has ended.
bool CuttingProxy::forward(Pair& pair, const Descriptor& from, const Descriptor& to) {
  std::array<char, 4096> bytes;
  auto got = recv(from.get(), bytes.data(), bytes.size(), 0);
  if (got <= 0) {
    return false;
  }
  const bool cut = pair.left >= 0 && got > pair.left;
  if (pair.left >= 0) {
    got = std::min<ssize_t>(got, pair.left);
    pair.left -= got;
  }
  const bool sent =
      send(to.get(), bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) == got;
  cuts_ += cut ? 1 : 0;
  return sent && !cut;
}

void CuttingProxy::run() {
  while (!ended_) {
    if (cut_all_.exchange(false)) {
      pairs_.clear();
    }
    std::vector<pollfd> waited{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const auto& pair : pairs_) {
      const short wanted = held_ ? 0 : POLLIN;
      waited.push_back({.fd = pair.client.get(), .events = wanted, .revents = 0});
      waited.push_back({.fd = pair.server.get(), .events = wanted, .revents = 0});
    }
    constexpr int look_again_ms = 2;  // whether something was asked of it
    if (poll(waited.data(), waited.size(), look_again_ms) <= 0) {
      continue;
    }
    std::size_t at = 1;
    for (auto pair = pairs_.begin(); pair != pairs_.end(); at += 2) {
      const bool open =
          held_ || ((waited[at].revents == 0 || forward(*pair, pair->client, pair->server)) &&
                    (waited[at + 1].revents == 0 || forward(*pair, pair->server, pair->client)));
      pair = open ? std::next(pair) : pairs_.erase(pair);
    }
    if (waited[0].revents != 0) {
      accept_one();
    }
  }
}

}  // namespace troupe::test
