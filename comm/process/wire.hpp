/// Writes and reads the values that processes of a world send each other, with one description for
/// both directions:
///
///     template <class Wire>
///     void carry(Wire& wire, GroupName& name) {
///       wire.list(name.ranks, 4096, [](Wire& w, int& rank) { w.number(rank); });
///       wire.number(name.channel);
///     }
///
/// Numbers are 8 bytes, little-endian; choices a byte; texts and lists are led by their count. The
/// store takes no value of any size, so longer texts are cut.
/// What is read is not trusted: counts are bounded by what is there, numbers have to fit.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

class WireWriter {
 public:
  static constexpr std::size_t text_bytes_max = std::size_t{64} << 10;

  template <std::integral T>
  void number(T& value) {
    auto word = static_cast<std::uint64_t>(value);
    for (int byte = 0; byte < 8; ++byte, word >>= 8) {
      bytes_.push_back(static_cast<char>(word & 0xffU));
    }
  }
  template <class Enum>
  void choice(Enum& value, Enum /*last*/) {
    bytes_.push_back(static_cast<char>(value));
  }
  void text(std::string& value, std::size_t bytes_max = text_bytes_max) {
    constexpr std::string_view cut = " […]";
    const bool whole = value.size() <= bytes_max;
    const std::string_view kept(value.data(), whole ? value.size() : bytes_max - cut.size());
    std::size_t size = whole ? value.size() : bytes_max;
    number(size);
    bytes_ += kept;
    bytes_ += whole ? "" : cut;
  }
  template <class T, class Each>
  void list(std::vector<T>& values, std::size_t /*count_max*/, Each each) {
    std::size_t count = values.size();
    number(count);
    for (T& value : values) {
      each(*this, value);
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  template <std::integral T>
  void number(T& value) {
    std::uint64_t word = 0;
    if (!has(8)) {
      return;
    }
    for (std::size_t byte = 8; byte-- > 0;) {
      word = (word << 8) | static_cast<unsigned char>(rest_[byte]);
    }
    rest_.remove_prefix(8);
    value = static_cast<T>(word);
    good_ = good_ && static_cast<std::uint64_t>(value) == word;
  }
  template <class Enum>
  void choice(Enum& value, Enum last) {
    if (!has(1)) {
      return;
    }
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    good_ = byte <= static_cast<unsigned char>(last);
    if (good_) {
      value = static_cast<Enum>(byte);
    }
  }
  void text(std::string& value, std::size_t /*bytes_max*/ = 0) {
    std::size_t size = 0;
    number(size);
    if (!has(size)) {
      return;
    }
    value = rest_.substr(0, size);
    rest_.remove_prefix(size);
  }
  template <class T, class Each>
  void list(std::vector<T>& values, std::size_t count_max, Each each) {
    std::size_t count = 0;
    number(count);
    good_ = good_ && count <= count_max && count <= rest_.size();  // an element takes some bytes
    for (std::size_t index = 0; good_ && index < count; ++index) {
      each(*this, values.emplace_back());
    }
  }
  /// Whether all was as it has to be, and nothing is left over.
  bool complete() const { return good_ && rest_.empty(); }

 private:
  bool has(std::size_t count) {
    good_ = good_ && rest_.size() >= count;
    return good_;
  }

  std::string_view rest_;
  bool good_ = true;
};

}  // namespace troupe
