#include "troupe/comm/store/handshake.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>
#include <utility>

namespace troupe::store {
namespace {

constexpr std::string_view client_label = "troupe store 1: client";
constexpr std::string_view server_label = "troupe store 1: server";

void fill_random(void* data, std::size_t size) {
  if (RAND_bytes(static_cast<unsigned char*>(data), static_cast<int>(size)) != 1) {
    throw Error({.code = ErrorCode::internal, .text = "OpenSSL has no random numbers"});
  }
}

Nonce make_nonce() {
  Nonce nonce;
  fill_random(nonce.data(), nonce.size());
  return nonce;
}

// Transcripts are of frames with their lengths, so that no two have the same bytes.
Mac mac_of(std::string_view secret, std::string_view label, std::string_view transcript) {
  std::string text(label);
  text += '\0';
  text += transcript;
  Mac mac{};
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
           &size) == nullptr ||
      size != mac.size()) {
    throw Error({.code = ErrorCode::internal, .text = "OpenSSL has no HMAC-SHA-256"});
  }
  return mac;
}

bool equal(const Mac& a, const Mac& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Failure refused(std::string text) {
  return {.code = ErrorCode::network, .text = std::move(text)};
}

Failure other_version(const char* whose, std::uint32_t version) {
  return refused(std::string(whose) + " speaks version " + std::to_string(version) +
                 " of the protocol, not " + std::to_string(protocol_version));
}

// What the proof's MAC is over: its frame with a MAC of zeros.
std::string without_mac(Proof proof) {
  proof.mac = {};
  return encode(proof);
}

std::string without_mac(Welcome welcome) {
  welcome.mac = {};
  return encode(welcome);
}

}  // namespace

std::uint64_t random_number() {
  std::uint64_t number = 0;
  fill_random(&number, sizeof number);
  return number;
}

// ---- server -------------------------------------------------------------------------------------

ServerHandshake::ServerHandshake(std::string secret)
    : secret_(std::move(secret)), nonce_(make_nonce()) {}

Result<std::string> ServerHandshake::hello(std::string_view body) {
  const auto hello = decode_hello(body);
  if (!hello) {
    return refused("not a client of a Troupe store");
  }
  if (hello->version != protocol_version) {
    return other_version("the client", hello->version);
  }
  std::string challenge = encode(Challenge{.nonce = nonce_});
  transcript_ = encode(*hello) + challenge;
  return challenge;
}

Result<ServerHandshake::Claim> ServerHandshake::proof(std::string_view body) {
  const auto proof = decode_proof(body);
  if (!proof) {
    return refused("a proof that is none");
  }
  transcript_ += without_mac(*proof);
  if (!equal(proof->mac, mac_of(secret_, client_label, transcript_))) {
    return refused("the job's secret is another one");
  }
  return Claim{proof->instance, proof->session, proof->name};
}

std::string ServerHandshake::welcome(Welcome welcome) {
  transcript_ += without_mac(welcome);
  welcome.mac = mac_of(secret_, server_label, transcript_);
  return encode(welcome);
}

// ---- client -------------------------------------------------------------------------------------

ClientHandshake::ClientHandshake(std::string secret,
                                 std::uint64_t instance,
                                 std::uint64_t session,
                                 std::string name)
    : secret_(std::move(secret)),
      nonce_(make_nonce()),
      proof_{.instance = instance, .session = session, .name = std::move(name)} {
  proof_.name.resize(std::min(proof_.name.size(), name_bytes));
}

std::string ClientHandshake::hello() {
  transcript_ = encode(Hello{.nonce = nonce_});
  return transcript_;
}

Result<std::string> ClientHandshake::challenge(std::string_view body) {
  if (const auto refusal = decode_refusal(body)) {
    return refused(refusal->text);
  }
  const auto challenge = decode_challenge(body);
  if (!challenge) {
    return refused("what answers there is no Troupe store");
  }
  if (challenge->version != protocol_version) {
    return other_version("the store", challenge->version);
  }
  transcript_ += encode(*challenge);
  transcript_ += without_mac(proof_);
  proof_.mac = mac_of(secret_, client_label, transcript_);
  return encode(proof_);
}

Result<Welcome> ClientHandshake::welcome(std::string_view body) {
  if (const auto refusal = decode_refusal(body)) {
    return refused(refusal->text);
  }
  const auto welcome = decode_welcome(body);
  if (!welcome) {
    return refused("what answers there is no Troupe store");
  }
  transcript_ += without_mac(*welcome);
  if (!equal(welcome->mac, mac_of(secret_, server_label, transcript_))) {
    return refused("the store does not have the job's secret");
  }
  return *welcome;
}

}  // namespace troupe::store
