/// Builds the texts of failures and reports. Not for hot paths.
#pragma once

#include "troupe/core/error.hpp"

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::detail {

inline std::string part(std::string_view text) {
  return std::string(text);
}
template <std::integral T>
std::string part(T number) {
  return std::to_string(number);
}

/// `concat("slots is ", 2)`: strings and integers, one after the other.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (text.append(part(parts)), ...);
  return text;
}

/// "3 slots", "1 slot".
inline std::string count_of(std::size_t count, std::string_view noun) {
  return concat(count, " ", noun, count == 1 ? "" : "s");
}

/// The name of each of `items`.
template <class Items, class Name>
std::vector<std::string> names_of(const Items& items, Name name) {
  std::vector<std::string> names;
  names.reserve(items.size());
  for (const auto& item : items) {
    names.push_back(name(item));
  }
  return names;
}

/// "a, b, c, ...": at most `shown` of them.
inline std::string listed(const std::vector<std::string>& names, std::size_t shown) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : ", ";
    if (i == shown) {
      return text + "...";
    }
    text += names[i];
  }
  return text;
}

inline Failure failure(ErrorCode code, std::string text) {
  Failure failure;
  failure.code = code;
  failure.text = std::move(text);
  return failure;
}

}  // namespace troupe::detail
