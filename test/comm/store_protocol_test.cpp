#include "support/store_bench.hpp"
#include "troupe/comm/store/handshake.hpp"
#include "troupe/comm/store/protocol.hpp"

#include <doctest/doctest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <random>

namespace troupe::test {
namespace {

using namespace store;
using std::chrono::milliseconds;

std::string body_of(const std::string& frame) {
  return frame.substr(4);
}

std::vector<Request> sample_requests() {
  std::vector<Request> requests = {
      of(Operation::set, "key", std::string("a\0b", 3)),
      of(Operation::get, ""),
      of(Operation::look, std::string(300, 'k')),
      waiting_for({"a", "", "ccc"}),
      waiting_for({}),
      adding("sum", -5),
      comparing("key", "old", "new"),
      of(Operation::compare_and_set, "key", "new"),
      of(Operation::erase, "key"),
      of(Operation::append, "log", "entry"),
      reading("log", std::uint64_t{1} << 40),
      leaving("log", "gone", milliseconds{30000}, milliseconds{1000}),
      {.operation = Operation::revoke_will},
  };
  std::uint64_t number = 0;
  for (auto& request : requests) {
    request.number = ++number << 33;
    request.settled_below = number;
    if (request.operation == Operation::get || request.operation == Operation::wait ||
        request.operation == Operation::read) {
      request.timeout = milliseconds{4294967295};
    }
  }
  return requests;
}

std::vector<Response> sample_responses() {
  return {{.number = 1},
          {.number = 1ULL << 63, .status = Status::refused, .value = "why"},
          {.number = 3, .count = -1},
          {.number = 4, .status = Status::late, .entries = {"a", "", std::string(1000, 'x')}}};
}

// A frame of each kind.
std::vector<std::string> sample_frames() {
  Nonce nonce;
  nonce.fill(7);
  std::vector<std::string> frames = {
      encode(Hello{.nonce = nonce}),
      encode(Challenge{.nonce = nonce}),
      encode(Proof{.instance = 1, .session = 2, .name = "rank 0", .mac = nonce}),
      encode(Welcome{.instance = 1, .session = 2, .key_bytes = 3, .value_bytes = 4}),
      encode(Refusal{"why"}),
      encode(FrameType::ping),
      encode(FrameType::pong),
      encode(FrameType::goodbye),
  };
  for (const auto& request : sample_requests()) {
    frames.push_back(encode(request));
  }
  for (const auto& response : sample_responses()) {
    frames.push_back(encode(response));
  }
  return frames;
}

// The frame that a body is of, made from what it was decoded to; nothing if it is no message.
std::optional<std::string> encoded_again(std::string_view body) {
  const auto type = type_of(body);
  if (!type) {
    return std::nullopt;
  }
  const auto again = [](const auto& value) {
    return value ? std::optional(encode(*value)) : std::nullopt;
  };
  switch (*type) {
    case FrameType::hello:
      return again(decode_hello(body));
    case FrameType::challenge:
      return again(decode_challenge(body));
    case FrameType::proof:
      return again(decode_proof(body));
    case FrameType::welcome:
      return again(decode_welcome(body));
    case FrameType::refusal:
      return again(decode_refusal(body));
    case FrameType::request:
      return again(decode_request(body));
    case FrameType::response:
      return again(decode_response(body));
    case FrameType::ping:
    case FrameType::pong:
    case FrameType::goodbye:
      return encode(*type);
  }
  return std::nullopt;
}

TEST_CASE("a message decodes to what was encoded") {
  for (const auto& request : sample_requests()) {
    CAPTURE(to_string(request.operation));
    CHECK(decode_request(body_of(encode(request))) == request);
  }
  for (const auto& response : sample_responses()) {
    CHECK(decode_response(body_of(encode(response))) == response);
  }
  const auto frames = sample_frames();
  for (const auto& frame : frames) {
    CHECK(encoded_again(body_of(frame)) == frame);
  }
}

TEST_CASE("the bytes are those that protocol.md says") {
  Request add = adding("ab", -2);
  add.number = 0x0102;
  add.settled_below = 1;
  const std::string right(
      "\x20\0\0\0"                         // length
      "\x06"                               // request
      "\x02\x01\0\0\0\0\0\0"               // number
      "\x01\0\0\0\0\0\0\0"                 // settled below
      "\x05"                               // add
      "\x02\0\0\0"                         // key: length
      "ab"                                 //
      "\xfe\xff\xff\xff\xff\xff\xff\xff",  // amount
      36);
  CHECK(encode(add) == right);
  CHECK(encode(FrameType::ping) == std::string("\x01\0\0\0\x08", 5));
  CHECK(encode(Hello{}).substr(0, 17) == std::string("\x2d\0\0\0\x01troupest\x01\0\0\0", 17));
}

TEST_CASE("a message that was cut off, or has something behind it, is none") {
  for (const auto& frame : sample_frames()) {
    const std::string body = body_of(frame);
    for (std::size_t size = 0; size < body.size(); ++size) {
      CAPTURE(size);
      CHECK_FALSE(encoded_again(body.substr(0, size)));
    }
    CHECK_FALSE(encoded_again(body + '\0'));
  }
}

TEST_CASE("a damaged byte leaves a message of its own, or none") {
  int none = 0;
  int other = 0;
  for (const auto& frame : sample_frames()) {
    const std::string body = body_of(frame);
    for (std::size_t at = 0; at < body.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string damaged = body;
        damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
        const auto again = encoded_again(damaged);
        if (!again) {
          ++none;
        } else {
          CHECK(body_of(*again) == damaged);
          ++other;
        }
      }
    }
  }
  CHECK(none > 1000);
  CHECK(other > 1000);
}

TEST_CASE("random bytes are no message, or one that says them again") {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    std::string body(random() % 64, '\0');
    for (auto& each : body) {
      each = static_cast<char>(random() % (i % 2 == 0 ? 256 : 12));
    }
    if (const auto again = encoded_again(body)) {
      CHECK(body_of(*again) == body);
    }
  }
}

TEST_CASE("frames come out of a stream however it is cut") {
  std::string stream;
  std::vector<std::string> bodies;
  for (const auto& frame : sample_frames()) {
    stream += frame;
    bodies.push_back(body_of(frame));
  }
  for (std::size_t piece = 1; piece < 70; ++piece) {
    FrameReader reader(2000);
    std::vector<std::string> seen;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::string_view(stream).substr(at, piece));
      while (const auto body = reader.next()) {
        seen.emplace_back(*body);
      }
    }
    CHECK(seen == bodies);
    CHECK_FALSE(reader.broken());
  }
}

TEST_CASE("a length of nothing, or beyond the limit, breaks a stream for good") {
  for (const std::string& length :
       {std::string(4, '\0'), std::string("\x0b\0\0\0", 4), std::string("\xff\xff\xff\xff", 4)}) {
    FrameReader reader(10);
    reader.feed(
        std::string("\x0a\0\0\0"
                    "0123456789",
                    14));
    CHECK(reader.next() == "0123456789");
    CHECK_FALSE(reader.next());
    reader.feed(length);
    CHECK_FALSE(reader.broken());
    CHECK_FALSE(reader.next());
    CHECK(reader.broken());
    reader.feed(encode(FrameType::ping));
    CHECK_FALSE(reader.next());
  }
}

// ---- the handshake ------------------------------------------------------------------------------

struct Handshake {
  explicit Handshake(std::string client_secret = "secret", std::string server_secret = "secret")
      : client(std::move(client_secret), 5, 6, "rank 3"), server(std::move(server_secret)) {}

  /// Up to the proof, and its failure, if it has one.
  Result<ServerHandshake::Claim> prove() {
    hello = body_of(client.hello());
    challenge = server.hello(hello).value();
    proof = client.challenge(body_of(challenge)).value();
    return server.proof(body_of(proof));
  }

  ClientHandshake client;
  ServerHandshake server;
  std::string hello;  ///< without its length
  std::string challenge;
  std::string proof;
};

TEST_CASE("with the same secret, or with none, both sides are content") {
  for (const std::string& secret : {std::string("secret"), std::string()}) {
    Handshake handshake(secret, secret);
    const auto claim = handshake.prove();
    REQUIRE(claim);
    CHECK(claim.value().instance == 5);
    CHECK(claim.value().session == 6);
    CHECK(claim.value().name == "rank 3");
    const auto welcome =
        handshake.client.welcome(body_of(handshake.server.welcome({.instance = 5, .session = 9})));
    REQUIRE(welcome);
    CHECK(welcome.value().session == 9);
  }
}

TEST_CASE("a client with another secret is refused") {
  for (const std::string& secret : std::vector<std::string>{"", "secres", "Secret", "secret "}) {
    Handshake handshake(secret);
    CHECK(handshake.prove().failure().text == "the job's secret is another one");
  }
}

TEST_CASE("a server that cannot prove the secret is refused") {
  Handshake handshake;
  REQUIRE(handshake.prove());
  const std::string welcome = handshake.server.welcome({.session = 9});
  for (std::size_t at = 1; at < body_of(welcome).size(); ++at) {
    Handshake other;
    REQUIRE(other.prove());
    std::string body = body_of(other.server.welcome({.session = 9}));
    body[at] = static_cast<char>(body[at] ^ 1);
    CHECK(other.client.welcome(body).failure().text == "the store does not have the job's secret");
  }
}

TEST_CASE("the proofs are those that protocol.md says") {
  const auto expected = [](std::string_view label, std::string transcript) {
    transcript = std::string(label) + '\0' + transcript;
    Mac mac{};
    HMAC(EVP_sha256(), "secret", 6, reinterpret_cast<const unsigned char*>(transcript.data()),
         transcript.size(), mac.data(), nullptr);
    return mac;
  };
  ClientHandshake client("secret", 5, 6, "rank 3");
  ServerHandshake server("secret");
  std::string transcript = client.hello();
  const std::string challenge = server.hello(body_of(transcript)).value();
  const std::string proof = client.challenge(body_of(challenge)).value();
  REQUIRE(server.proof(body_of(proof)));
  const std::string welcome = server.welcome({.instance = 5, .session = 6});

  transcript += challenge;
  transcript += proof.substr(0, proof.size() - 32) + std::string(32, '\0');
  CHECK(decode_proof(body_of(proof))->mac == expected("troupe store 1: client", transcript));
  transcript += welcome.substr(0, welcome.size() - 32) + std::string(32, '\0');
  CHECK(decode_welcome(body_of(welcome))->mac == expected("troupe store 1: server", transcript));
}

TEST_CASE("a proof is good for its own connection only, and not in the other direction") {
  Handshake first;
  REQUIRE(first.prove());
  ServerHandshake second("secret");
  REQUIRE(second.hello(first.hello));
  CHECK_FALSE(second.proof(body_of(first.proof)));  // replayed

  // A server that sends back what the client proved with.
  Handshake third;
  REQUIRE(third.prove());
  const auto proof = decode_proof(body_of(third.proof));
  const std::string mirrored = encode(Welcome{.instance = 5, .session = 6, .mac = proof->mac});
  CHECK_FALSE(third.client.welcome(body_of(mirrored)));
}

TEST_CASE("what a proof claims cannot be changed on the way") {
  Handshake sample;
  REQUIRE(sample.prove());
  const std::size_t size = body_of(sample.proof).size();
  for (std::size_t at = 1; at < size; ++at) {
    Handshake handshake;
    handshake.challenge = handshake.server.hello(body_of(handshake.client.hello())).value();
    std::string body = body_of(handshake.client.challenge(body_of(handshake.challenge)).value());
    body[at] = static_cast<char>(body[at] ^ 1);
    CHECK_FALSE(handshake.server.proof(body));
  }
}

TEST_CASE("other versions and other protocols are told so") {
  ServerHandshake server("secret");
  CHECK(server.hello(body_of(encode(Hello{.version = 2}))).failure().text ==
        "the client speaks version 2 of the protocol, not 1");
  CHECK(server.hello("GET / HTTP/1.1").failure().text == "not a client of a Troupe store");
  ClientHandshake client("secret", 0, 0, "");
  client.hello();
  CHECK(client.challenge(body_of(encode(Challenge{.version = 7}))).failure().text ==
        "the store speaks version 7 of the protocol, not 1");
  CHECK(client.challenge("SSH-2.0").failure().text == "what answers there is no Troupe store");
  CHECK(client.challenge(body_of(encode(Refusal{"why"}))).failure().text == "why");
}

}  // namespace
}  // namespace troupe::test
