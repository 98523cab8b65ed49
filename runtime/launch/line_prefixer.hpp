/// Puts a prefix before each line of what a rank writes, so that the lines of many can be told
/// apart in one stream. Bytes are passed on as they are, whatever they are; only whole lines are,
/// so that no two ranks ever share one. One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace troupe::launch {

class LinePrefixer {
 public:
  /// A longer line is cut into several, so that a rank which never ends one cannot fill the memory.
  static constexpr std::size_t line_bytes_max = std::size_t{1} << 20;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  /// Appends to `out` the lines that are whole with these bytes.
  void take(std::string_view bytes, std::string& out) {
    while (!bytes.empty()) {
      const std::size_t end = bytes.find('\n');
      const std::size_t room = line_bytes_max - begun_.size();
      const std::size_t count = std::min({end, room, bytes.size()});
      begun_ += bytes.substr(0, count);
      bytes.remove_prefix(count);
      if (count == end) {
        bytes.remove_prefix(1);
        put_line(out);
      } else if (count == room) {
        put_line(out);
      }
    }
  }
  /// Nothing more comes: a last line without an end gets one.
  void finish(std::string& out) {
    if (!begun_.empty()) {
      put_line(out);
    }
  }

 private:
  void put_line(std::string& out) {
    out += prefix_;
    out += begun_;
    out += '\n';
    begun_.clear();
  }

  const std::string prefix_;
  std::string begun_;  // of the line that has not ended
};

}  // namespace troupe::launch
