#include "troupe/comm/store/protocol.hpp"

#include "troupe/comm/store/bytes.hpp"

#include <algorithm>
#include <utility>

namespace troupe::store {
namespace {

constexpr std::size_t length_bytes = 4;

// A frame of this type; `write` writes what follows the type.
template <class Write>
std::string frame(FrameType type, Write write) {
  ByteWriter body;
  body.u8(static_cast<std::uint8_t>(type));
  write(body);
  ByteWriter whole;
  whole.bytes(body.take());
  return whole.take();
}

// What `read` makes of the rest of a body of this type, if that is sound and has nothing behind it.
template <class Value, class Read>
std::optional<Value> decoded(std::string_view body, FrameType type, Read read) {
  ByteReader in(body);
  if (in.u8() != static_cast<std::uint8_t>(type)) {
    return std::nullopt;
  }
  Value value;
  read(in, value);
  return in.ok() && in.ended() ? std::optional(std::move(value)) : std::nullopt;
}

std::string_view view(const std::array<std::uint8_t, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::array<std::uint8_t, 32> array32(ByteReader& in) {
  std::array<std::uint8_t, 32> bytes{};
  std::ranges::copy(in.raw(bytes.size()), bytes.begin());
  return bytes;
}

std::string limited(ByteReader& in, std::size_t limit) {
  const auto text = in.bytes();
  in.require(text.size() <= limit);
  return std::string(text);
}

std::uint32_t milliseconds_of(std::chrono::milliseconds duration) {
  return static_cast<std::uint32_t>(duration.count());
}

std::chrono::milliseconds milliseconds(ByteReader& in) {
  return std::chrono::milliseconds{in.u32()};
}

// What of a request follows its operation.
void write_fields(ByteWriter& out, const Request& request) {
  switch (request.operation) {
    case Operation::set:
    case Operation::append:
      out.bytes(request.keys[0]);
      out.bytes(request.value);
      return;
    case Operation::get:
      out.bytes(request.keys[0]);
      out.u32(milliseconds_of(request.timeout));
      return;
    case Operation::look:
    case Operation::erase:
      out.bytes(request.keys[0]);
      return;
    case Operation::wait:
      out.u32(milliseconds_of(request.timeout));
      out.u32(static_cast<std::uint32_t>(request.keys.size()));
      for (const auto& key : request.keys) {
        out.bytes(key);
      }
      return;
    case Operation::add:
      out.bytes(request.keys[0]);
      out.u64(static_cast<std::uint64_t>(request.amount));
      return;
    case Operation::compare_and_set:
      out.bytes(request.keys[0]);
      out.u8(request.expected ? 1 : 0);
      if (request.expected) {
        out.bytes(*request.expected);
      }
      out.bytes(request.value);
      return;
    case Operation::read:
      out.bytes(request.keys[0]);
      out.u64(request.from);
      out.u32(milliseconds_of(request.timeout));
      return;
    case Operation::leave_will:
      out.bytes(request.keys[0]);
      out.bytes(request.value);
      out.u32(milliseconds_of(request.silence));
      out.u32(milliseconds_of(request.grace));
      return;
    case Operation::revoke_will:
      return;
  }
}

void read_fields(ByteReader& in, Request& request) {
  const auto read_key = [&] { request.keys.emplace_back(in.bytes()); };
  switch (request.operation) {
    case Operation::set:
    case Operation::append:
      read_key();
      request.value = in.bytes();
      return;
    case Operation::get:
      read_key();
      request.timeout = milliseconds(in);
      return;
    case Operation::look:
    case Operation::erase:
      read_key();
      return;
    case Operation::wait:
      request.timeout = milliseconds(in);
      for (auto left = in.u32(); left > 0 && in.ok(); --left) {
        read_key();
      }
      return;
    case Operation::add:
      read_key();
      request.amount = static_cast<std::int64_t>(in.u64());
      return;
    case Operation::compare_and_set: {
      read_key();
      const auto expects = in.u8();
      in.require(expects <= 1);
      if (expects == 1) {
        request.expected = in.bytes();
      }
      request.value = in.bytes();
      return;
    }
    case Operation::read:
      read_key();
      request.from = in.u64();
      request.timeout = milliseconds(in);
      return;
    case Operation::leave_will:
      read_key();
      request.value = in.bytes();
      request.silence = milliseconds(in);
      request.grace = milliseconds(in);
      return;
    case Operation::revoke_will:
      return;
  }
  in.require(false);  // no operation
}

}  // namespace

// ---- the handshake ------------------------------------------------------------------------------

std::string encode(const Hello& hello) {
  return frame(FrameType::hello, [&](ByteWriter& out) {
    out.raw(protocol_magic);
    out.u32(hello.version);
    out.raw(view(hello.nonce));
  });
}

std::optional<Hello> decode_hello(std::string_view body) {
  return decoded<Hello>(body, FrameType::hello, [](ByteReader& in, Hello& hello) {
    in.require(in.raw(protocol_magic.size()) == protocol_magic);
    hello.version = in.u32();
    hello.nonce = array32(in);
  });
}

std::string encode(const Challenge& challenge) {
  return frame(FrameType::challenge, [&](ByteWriter& out) {
    out.u32(challenge.version);
    out.raw(view(challenge.nonce));
  });
}

std::optional<Challenge> decode_challenge(std::string_view body) {
  return decoded<Challenge>(body, FrameType::challenge, [](ByteReader& in, Challenge& challenge) {
    challenge.version = in.u32();
    challenge.nonce = array32(in);
  });
}

std::string encode(const Proof& proof) {
  return frame(FrameType::proof, [&](ByteWriter& out) {
    out.u64(proof.instance);
    out.u64(proof.session);
    out.bytes(std::string_view(proof.name).substr(0, name_bytes));
    out.raw(view(proof.mac));
  });
}

std::optional<Proof> decode_proof(std::string_view body) {
  return decoded<Proof>(body, FrameType::proof, [](ByteReader& in, Proof& proof) {
    proof.instance = in.u64();
    proof.session = in.u64();
    proof.name = limited(in, name_bytes);
    proof.mac = array32(in);
  });
}

std::string encode(const Welcome& welcome) {
  return frame(FrameType::welcome, [&](ByteWriter& out) {
    out.u64(welcome.instance);
    out.u64(welcome.session);
    out.u64(welcome.key_bytes);
    out.u64(welcome.value_bytes);
    out.u64(welcome.frame_bytes);
    out.raw(view(welcome.mac));
  });
}

std::optional<Welcome> decode_welcome(std::string_view body) {
  return decoded<Welcome>(body, FrameType::welcome, [](ByteReader& in, Welcome& welcome) {
    welcome.instance = in.u64();
    welcome.session = in.u64();
    welcome.key_bytes = in.u64();
    welcome.value_bytes = in.u64();
    welcome.frame_bytes = in.u64();
    welcome.mac = array32(in);
  });
}

std::string encode(const Refusal& refusal) {
  return frame(FrameType::refusal, [&](ByteWriter& out) {
    out.bytes(std::string_view(refusal.text).substr(0, name_bytes));
  });
}

std::optional<Refusal> decode_refusal(std::string_view body) {
  return decoded<Refusal>(body, FrameType::refusal, [](ByteReader& in, Refusal& refusal) {
    refusal.text = limited(in, name_bytes);
  });
}

// ---- requests and responses ---------------------------------------------------------------------

std::string encode(const Request& request) {
  return frame(FrameType::request, [&](ByteWriter& out) {
    out.u64(request.number);
    out.u64(request.settled_below);
    out.u8(static_cast<std::uint8_t>(request.operation));
    write_fields(out, request);
  });
}

std::optional<Request> decode_request(std::string_view body) {
  return decoded<Request>(body, FrameType::request, [](ByteReader& in, Request& request) {
    request.number = in.u64();
    request.settled_below = in.u64();
    request.operation = static_cast<Operation>(in.u8());
    in.require(request.number > 0 && request.settled_below <= request.number);
    read_fields(in, request);
  });
}

std::string encode(const Response& response) {
  return frame(FrameType::response, [&](ByteWriter& out) {
    out.u64(response.number);
    out.u8(static_cast<std::uint8_t>(response.status));
    out.u64(static_cast<std::uint64_t>(response.count));
    out.bytes(response.value);
    out.u32(static_cast<std::uint32_t>(response.entries.size()));
    for (const auto& entry : response.entries) {
      out.bytes(entry);
    }
  });
}

std::optional<Response> decode_response(std::string_view body) {
  return decoded<Response>(body, FrameType::response, [](ByteReader& in, Response& response) {
    response.number = in.u64();
    const auto status = in.u8();
    const bool known = status <= static_cast<std::uint8_t>(Status::refused);
    in.require(response.number > 0 && known);
    response.status = known ? static_cast<Status>(status) : Status::refused;
    response.count = static_cast<std::int64_t>(in.u64());
    response.value = in.bytes();
    for (auto left = in.u32(); left > 0 && in.ok(); --left) {
      response.entries.emplace_back(in.bytes());
    }
  });
}

std::string encode(FrameType type) {
  return frame(type, [](ByteWriter&) {});
}

// ---- frames -------------------------------------------------------------------------------------

std::optional<FrameType> type_of(std::string_view body) {
  const auto first = body.empty() ? 0 : static_cast<unsigned char>(body.front());
  if (first < static_cast<int>(FrameType::hello) || first > static_cast<int>(FrameType::goodbye)) {
    return std::nullopt;
  }
  const auto type = static_cast<FrameType>(first);
  const bool bare =
      type == FrameType::ping || type == FrameType::pong || type == FrameType::goodbye;
  return bare && body.size() > 1 ? std::nullopt : std::optional(type);
}

// Room for the largest of each: compare_and_set has two values; the rest is for keys of wait.
std::size_t frame_bytes(const StoreLimits& limits) {
  return 2 * limits.value_bytes + limits.key_bytes + (std::size_t{256} << 10);
}

std::optional<std::string_view> FrameReader::next() {
  const auto rest = std::string_view(buffer_).substr(taken_);
  if (broken_ || rest.size() < length_bytes) {
    return std::nullopt;
  }
  const std::size_t length = ByteReader(rest).u32();
  if (length == 0 || length > limit_) {
    broken_ = true;
    return std::nullopt;
  }
  if (rest.size() - length_bytes < length) {
    return std::nullopt;
  }
  taken_ += length_bytes + length;
  return rest.substr(length_bytes, length);
}

void FrameReader::feed(std::string_view bytes) {
  buffer_.erase(0, std::exchange(taken_, 0));
  buffer_ += bytes;
  if (buffer_.capacity() > 4 * (buffer_.size() + 4096)) {
    buffer_.shrink_to_fit();  // a large frame has gone
  }
}

}  // namespace troupe::store
