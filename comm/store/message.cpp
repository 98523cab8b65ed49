#include "troupe/comm/store/message.hpp"

#include <algorithm>
#include <utility>

namespace troupe::store {
namespace {

std::string too_large(std::string what, std::size_t bytes, std::size_t limit) {
  return std::move(what) + " has " + std::to_string(bytes) + " bytes; the store takes " +
         std::to_string(limit);
}

}  // namespace

std::optional<std::string> beyond_limits(const Request& request, const StoreLimits& limits) {
  for (const auto& key : request.keys) {
    if (key.size() > limits.key_bytes) {
      return too_large("key " + quoted(key), key.size(), limits.key_bytes);
    }
  }
  const auto largest = std::max(request.value.size(), request.expected.value_or("").size());
  return largest > limits.value_bytes
             ? std::optional(too_large("the value", largest, limits.value_bytes))
             : std::nullopt;
}

std::string quoted(std::string_view key) {
  constexpr std::size_t shown = 80;
  std::string text = "'";
  text += key.substr(0, shown);
  std::ranges::replace_if(text, [](char each) { return each < ' ' || each > '~'; }, '?');
  text += key.size() > shown ? "...'" : "'";
  return text;
}

}  // namespace troupe::store
