// The port that ranks meet at.
#include "troupe/runtime/launch/free_port.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <set>
#include <vector>

namespace troupe::launch {
namespace {

/// Whether a server that asks for it like most do can listen there.
bool can_listen(std::uint16_t port, bool reuse) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = reuse ? 1 : 0;
  REQUIRE(::setsockopt(socket.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
             0 &&
         ::listen(socket.number(), 1) == 0;
}

TEST_CASE("a rank can listen at the port, and again after that") {
  const FreePort port;
  CHECK(port.number() != 0);
  CHECK(can_listen(port.number(), true));
  CHECK(can_listen(port.number(), true));
}

TEST_CASE("nobody else gets the port while it is taken") {
  const FreePort port;
  CHECK_FALSE(can_listen(port.number(), false));
  std::vector<std::unique_ptr<FreePort>> others;
  std::set<std::uint16_t> numbers{port.number()};
  for (int i = 0; i < 500; ++i) {
    others.push_back(std::make_unique<FreePort>());
    numbers.insert(others.back()->number());
  }
  CHECK(numbers.size() == 501);
}

}  // namespace
}  // namespace troupe::launch
