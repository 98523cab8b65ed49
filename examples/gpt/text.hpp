// How the demo writes numbers and lines. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace gpt {

/// printf into a string; for short texts, longer ones are cut.
template <class... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

/// "1 272 064": groups of three digits.
inline std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (size_t end = digits.size(); end > 3; end -= 3) {
    digits.insert(end - 3, 1, ' ');
  }
  return digits;
}

inline std::string count_of(int64_t count, const std::string& noun) {
  const bool hisses = noun.ends_with("s") || noun.ends_with("ch");
  return grouped(count) + " " + noun + (count == 1 ? "" : hisses ? "es" : "s");
}

/// A line of the report: a name in a column, then what there is to say.
inline std::string line(std::string name, const std::string& text) {
  name.resize(std::max<size_t>(name.size() + 1, 24), ' ');
  return name + text + "\n";
}

}  // namespace gpt
