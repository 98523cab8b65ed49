/// The store over TCP: a server, in the process of rank 0 or in one of its own, and its clients.
/// protocol.md beside this file has the messages byte by byte.
///
/// Access takes the job's secret: the client proves by HMAC-SHA-256 over the server's challenge
/// that it has it, and the server the same to the client. Nothing is encrypted: values are not
/// secret. Without a secret the server listens on loopback addresses only.
#pragma once

#include "troupe/comm/store/store.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace troupe {

struct StoreAddress {
  std::string host = "127.0.0.1";  ///< name or address
  std::uint16_t port = 0;          ///< 0: the server chooses one
};

struct StoreServerOptions {
  StoreAddress listen{};
  std::string secret{};  ///< empty: none; then only a loopback address is taken
  StoreLimits limits{};
  /// A connection that has not proved the secret by then is closed.
  Duration handshake_limit = std::chrono::seconds{10};
  /// A client that gives no sign of life for so long is disconnected, and so is one that takes
  /// nothing of what is sent to it. It may come back.
  Duration idle_limit = std::chrono::seconds{60};
  /// Told whose connection has ended without a goodbye, and why, on the server's thread. Must not
  /// block.
  std::function<void(const std::string&)> on_disconnect{};
};

/// Serves from a thread of its own until it is destroyed. Clients that are slow, silent, malformed
/// or too large are disconnected; the others notice nothing.
class StoreServer {
 public:
  /// Errors: `network` (the address cannot be listened on), `bad_configuration` (no secret for an
  /// address beyond loopback), naming the address.
  static Result<std::unique_ptr<StoreServer>> start(StoreServerOptions options);
  virtual ~StoreServer() = default;
  /// Where it listens, with the port that it has.
  virtual StoreAddress address() const = 0;
  /// From now on nobody new connects, and another server may listen there; who is connected stays.
  virtual void stop_listening() = 0;
};

struct TcpStoreOptions {
  StoreAddress server{};
  std::string secret{};
  /// How long a lost server is looked for before calls fail; they fail at their own deadline
  /// anyway.
  Duration reconnect_limit = std::chrono::seconds{10};
  /// A server that answers nothing for so long counts as lost.
  Duration silence_limit = std::chrono::seconds{10};
  /// For the server's messages about this client: "rank 2 (pid 41 on host7)".
  std::string name{};
};

/// Connects, trying again until `deadline`: the server may start later.
Result<std::unique_ptr<Store>> connect_tcp_store(TcpStoreOptions options, TimePoint deadline);

}  // namespace troupe
