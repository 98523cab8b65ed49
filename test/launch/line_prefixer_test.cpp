// What comes of the bytes of one rank.
#include "troupe/runtime/launch/line_prefixer.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

namespace troupe::launch {
namespace {

/// The lines of `parts`, taken one after the other.
std::string lines_of(const std::vector<std::string_view>& parts, bool ended = true) {
  LinePrefixer lines("[2] ");
  std::string out;
  for (const std::string_view part : parts) {
    lines.take(part, out);
  }
  if (ended) {
    lines.finish(out);
  }
  return out;
}

TEST_CASE("every line has the prefix, however the bytes come") {
  const std::string expected = "[2] one\n[2] \n[2] two\n";
  CHECK(lines_of({"one\n\ntwo\n"}) == expected);
  CHECK(lines_of({"one", "\n", "\nt", "wo", "\n"}) == expected);
  std::vector<std::string_view> bytes;
  constexpr std::string_view text = "one\n\ntwo\n";
  for (std::size_t i = 0; i < text.size(); ++i) {
    bytes.push_back(text.substr(i, 1));
  }
  CHECK(lines_of(bytes) == expected);
}

TEST_CASE("a line is passed on when it is whole, the last one also without an end") {
  CHECK(lines_of({"one\ntw"}, false) == "[2] one\n");
  CHECK(lines_of({"one\ntw"}) == "[2] one\n[2] tw\n");
  CHECK(lines_of({}) == "");
  CHECK(lines_of({""}) == "");
}

TEST_CASE("bytes are passed on as they are") {
  constexpr std::string_view bytes("\0\r\x1b[1m\xff\xc3\n\0", 10);
  CHECK(lines_of({bytes}) ==
        "[2] " + std::string(bytes.substr(0, 9)) + "[2] " + std::string(bytes.substr(9)) + "\n");
}

TEST_CASE("a line of up to a mebibyte stays whole, a longer one is cut") {
  constexpr std::size_t max = LinePrefixer::line_bytes_max;
  const std::string longest(max - 1, 'x');
  CHECK(lines_of({longest, "\n"}) == "[2] " + longest + "\n");
  const std::string longer(max + 3, 'y');
  const std::string cut = "[2] " + longer.substr(0, max) + "\n[2] yyy\n";
  CHECK(lines_of({longer, "\n"}) == cut);
  CHECK(lines_of({std::string_view(longer).substr(0, 7), std::string_view(longer).substr(7)}) ==
        cut);
}

}  // namespace
}  // namespace troupe::launch
