/// The messages between a store's clients and its server as bytes, and back; protocol.md beside
/// this file has them byte by byte. Each value has one form only: what `decode_…` takes, `encode`
/// gives back, byte for byte. No sockets here.
///
/// Decoding takes the body of a frame as it comes from the network and returns nothing unless it is
/// exactly one message of the kind asked for.
#pragma once

#include "troupe/comm/store/message.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::store {

inline constexpr std::uint32_t protocol_version = 1;
/// The first bytes of a client's first message, which tell who came to the wrong port.
inline constexpr std::string_view protocol_magic = "troupest";

enum class FrameType : std::uint8_t {
  hello = 1,      ///< client: version and nonce
  challenge = 2,  ///< server: version and nonce
  proof = 3,      ///< client: who it is, and that it has the secret
  welcome = 4,    ///< server: the session, and that it has the secret, too
  refusal = 5,    ///< server: why it ends the connection
  request = 6,    ///< client
  response = 7,   ///< server
  ping = 8,       ///< client: a sign of life
  pong = 9,       ///< server: the answer to it
  goodbye = 10,   ///< client: it ends
};

using Nonce = std::array<std::uint8_t, 32>;
using Mac = std::array<std::uint8_t, 32>;  ///< HMAC-SHA-256

struct Hello {
  std::uint32_t version = protocol_version;
  Nonce nonce{};
};

struct Challenge {
  std::uint32_t version = protocol_version;
  Nonce nonce{};
};

struct Proof {
  std::uint64_t instance = 0;  ///< of the server that has the session
  std::uint64_t session = 0;   ///< 0: a new one
  std::string name{};          ///< of the client, for messages
  Mac mac{};
};

struct Welcome {
  std::uint64_t instance = 0;
  std::uint64_t session = 0;
  std::uint64_t key_bytes = 0;  ///< limits of the store, see `StoreLimits`
  std::uint64_t value_bytes = 0;
  std::uint64_t frame_bytes = 0;  ///< of a frame's body
  Mac mac{};
};

struct Refusal {
  std::string text{};
};

// Whole frames, with their length.

std::string encode(const Hello& hello);
std::string encode(const Challenge& challenge);
std::string encode(const Proof& proof);
std::string encode(const Welcome& welcome);
std::string encode(const Refusal& refusal);
std::string encode(const Request& request);
std::string encode(const Response& response);
/// ping, pong, goodbye: those that are nothing but their type.
std::string encode(FrameType type);

// Of bodies: without the length, with the type.

/// Nothing if it is empty or of no type there is.
std::optional<FrameType> type_of(std::string_view body);
std::optional<Hello> decode_hello(std::string_view body);
std::optional<Challenge> decode_challenge(std::string_view body);
std::optional<Proof> decode_proof(std::string_view body);
std::optional<Welcome> decode_welcome(std::string_view body);
std::optional<Refusal> decode_refusal(std::string_view body);
std::optional<Request> decode_request(std::string_view body);
std::optional<Response> decode_response(std::string_view body);

/// The longest body of a frame of the handshake.
inline constexpr std::size_t handshake_frame_bytes = 1024;
/// The longest client's name, and text of a refusal.
inline constexpr std::size_t name_bytes = 256;
/// The longest body of any other frame of a store with these limits.
std::size_t frame_bytes(const StoreLimits& limits);

/// Cuts a stream of bytes into frames. Holds no more than has been fed and not taken yet.
class FrameReader {
 public:
  explicit FrameReader(std::size_t limit) : limit_(limit) {}

  /// For the bodies of frames of which nothing has been seen yet.
  void set_limit(std::size_t limit) { limit_ = limit; }
  void feed(std::string_view bytes);
  /// The body of the next frame; valid until `feed`. Nothing: more bytes are needed, or `broken`.
  std::optional<std::string_view> next();
  /// A length is 0 or beyond the limit: nothing that follows has a meaning.
  bool broken() const { return broken_; }

 private:
  std::size_t limit_;
  std::string buffer_;
  std::size_t taken_ = 0;  ///< bytes at the front of the buffer that are done with
  bool broken_ = false;
};

}  // namespace troupe::store
