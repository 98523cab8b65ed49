// Any bytes as what a store's server or client may get from the network: nothing crashes, frames
// come out alike however the stream is cut, and what is taken for a message says itself again.
#include "fuzz_target.hpp"
#include "troupe/comm/store/handshake.hpp"
#include "troupe/comm/store/protocol.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace troupe::store;

template <class Message>
void says_itself(const std::optional<Message>& message, std::string_view body) {
  if (message) {
    troupe::test::must(encode(*message).substr(4) == body, "a message has one form only");
  }
}

void decode_all(std::string_view body) {
  type_of(body);
  says_itself(decode_hello(body), body);
  says_itself(decode_challenge(body), body);
  says_itself(decode_proof(body), body);
  says_itself(decode_welcome(body), body);
  says_itself(decode_refusal(body), body);
  says_itself(decode_request(body), body);
  says_itself(decode_response(body), body);
}

std::vector<std::string> frames_of(std::string_view stream, std::size_t piece, bool& broken) {
  FrameReader reader(4096);
  std::vector<std::string> bodies;
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    reader.feed(stream.substr(at, piece));
    while (const auto body = reader.next()) {
      bodies.emplace_back(*body);
    }
  }
  broken = reader.broken();
  return bodies;
}

void shake_hands(const std::vector<std::string>& bodies) {
  ServerHandshake server("secret");
  ClientHandshake client("secret", 1, 2, "name");
  client.hello();
  for (std::size_t i = 0; i + 1 < std::min<std::size_t>(bodies.size(), 4); i += 2) {
    if (server.hello(bodies[i])) {
      troupe::test::must(!server.proof(bodies[i + 1]).ok(), "nobody guesses a proof");
    }
    if (client.challenge(bodies[i])) {
      troupe::test::must(!client.welcome(bodies[i + 1]).ok(), "nobody guesses a proof");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view stream(reinterpret_cast<const char*>(data), size);
  decode_all(stream);
  bool broken = false;
  const auto bodies = frames_of(stream, std::max<std::size_t>(size, 1), broken);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}}) {
    bool broken_too = false;
    troupe::test::must(frames_of(stream, piece, broken_too) == bodies && broken_too == broken,
                       "frames come out alike however the stream is cut");
  }
  for (const auto& body : bodies) {
    decode_all(body);
  }
  shake_hands(bodies);
  return 0;
}
