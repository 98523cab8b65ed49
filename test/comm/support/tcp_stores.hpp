/// A server on a port that the kernel chooses, and clients of it.
#pragma once

#include "store_contract.hpp"
#include "troupe/comm/store/tcp_store.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace troupe::test {

inline std::unique_ptr<StoreServer> start_server(StoreServerOptions options) {
  auto server = StoreServer::start(std::move(options));
  REQUIRE_MESSAGE(server, server.failure().text);
  return std::move(server.value());
}

inline std::unique_ptr<Store> connect(TcpStoreOptions options) {
  auto client = connect_tcp_store(std::move(options), in_time());
  REQUIRE_MESSAGE(client, client.failure().text);
  return std::move(client.value());
}

struct TcpStores {
  explicit TcpStores(StoreLimits limits = {}) {
    StoreServerOptions options;
    options.secret = secret;
    options.limits = limits;
    server = start_server(std::move(options));
  }

  std::unique_ptr<Store> client() {
    return connect({.server = server->address(), .secret = secret});
  }

  const std::string secret = "a secret";
  std::unique_ptr<StoreServer> server;
};

}  // namespace troupe::test
