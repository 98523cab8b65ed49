#include "troupe/comm/store/message.hpp"

#include <algorithm>

namespace troupe::store {

std::string quoted(std::string_view key) {
  constexpr std::size_t shown = 80;
  std::string text = "'";
  text += key.substr(0, shown);
  std::ranges::replace_if(text, [](char each) { return each < ' ' || each > '~'; }, '?');
  text += key.size() > shown ? "...'" : "'";
  return text;
}

}  // namespace troupe::store
