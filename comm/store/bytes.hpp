/// Integers and byte strings of the protocol, written to and read from a string of bytes.
/// All integers are little-endian; a byte string is preceded by its length in 4 bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace troupe::store {

class ByteWriter {
 public:
  void u8(std::uint8_t value) { integer(value, 1); }
  void u32(std::uint32_t value) { integer(value, 4); }
  void u64(std::uint64_t value) { integer(value, 8); }
  void raw(std::string_view bytes) { bytes_ += bytes; }
  /// Not longer than 4 GiB.
  void bytes(std::string_view bytes) {
    u32(static_cast<std::uint32_t>(bytes.size()));
    raw(bytes);
  }
  std::string take() { return std::move(bytes_); }

 private:
  void integer(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) {
      bytes_ += static_cast<char>(value >> (8 * i) & 0xFFU);
    }
  }

  std::string bytes_;
};

/// Reads what may have been cut or damaged: beyond the end everything is zero or empty, and `ok`
/// turns false for good. Nothing is allocated before its bytes are seen to be there.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}
  std::uint8_t u8() { return static_cast<std::uint8_t>(integer(1)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(integer(4)); }
  std::uint64_t u64() { return integer(8); }
  std::string_view raw(std::size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view bytes() { return raw(u32()); }
  /// Marks as damaged what has been read, unless `sound`.
  void require(bool sound) { ok_ = ok_ && sound; }
  bool ok() const { return ok_; }
  bool ended() const { return rest_.empty(); }

 private:
  std::uint64_t integer(std::size_t size) {
    std::uint64_t value = 0;
    const auto bytes = raw(size);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    return value;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace troupe::store
