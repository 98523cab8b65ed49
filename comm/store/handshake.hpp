/// How a client and a store's server prove to each other that they have the job's secret, before
/// anything else is said:
///
///     client                          server
///       hello(nonce)             ──►
///                                ◄──  challenge(nonce)
///       proof(session, MAC)      ──►
///                                ◄──  welcome(session, MAC), or refusal
///
/// The MACs are HMAC-SHA-256 with the secret over all frames so far, under labels of their own, so
/// that neither can be used again: not for another connection, not for the other direction. Where
/// there is no secret, it is empty on both sides.
///
/// Each object is for one connection; its calls come in the order in which they stand here. Bodies
/// are of frames. Failures (network) are why the connection has to end.
#pragma once

#include "troupe/comm/store/protocol.hpp"
#include "troupe/core/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::store {

/// 8 bytes that nobody can guess.
std::uint64_t random_number();

class ServerHandshake {
 public:
  /// Whom the client says to be, once it has proved the secret.
  struct Claim {
    std::uint64_t instance = 0;
    std::uint64_t session = 0;  ///< 0: a new one
    std::string name{};
  };

  explicit ServerHandshake(std::string secret);
  /// The challenge, as a frame.
  Result<std::string> hello(std::string_view body);
  Result<Claim> proof(std::string_view body);
  /// The frame; `welcome.mac` is set here.
  std::string welcome(Welcome welcome);

 private:
  const std::string secret_;
  const Nonce nonce_;
  std::string transcript_;
};

class ClientHandshake {
 public:
  /// `instance`, `session`: those of the connection before, or 0.
  ClientHandshake(std::string secret,
                  std::uint64_t instance,
                  std::uint64_t session,
                  std::string name);
  std::string hello();  ///< as a frame
  /// The proof, as a frame.
  Result<std::string> challenge(std::string_view body);
  Result<Welcome> welcome(std::string_view body);

 private:
  const std::string secret_;
  const Nonce nonce_;
  Proof proof_;
  std::string transcript_;
};

}  // namespace troupe::store
