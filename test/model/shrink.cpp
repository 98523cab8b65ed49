#include "shrink.hpp"

#include <algorithm>
#include <charconv>
#include <tuple>
#include <utility>

namespace troupe::test {

namespace {

void drop_zeros_at_end(Choices& choices) {
  while (!choices.empty() && choices.back() == 0) {
    choices.pop_back();
  }
}

}  // namespace

Choices shrink(Choices failing, const StillFails& still_fails, int attempts_max) {
  drop_zeros_at_end(failing);
  int attempts = 0;
  for (std::size_t part = failing.size(); part > 0 && attempts < attempts_max; part /= 2) {
    // From the end: what comes last often is not needed at all.
    for (std::size_t end = failing.size(); end > 0 && attempts < attempts_max;
         end -= std::min(end, part)) {
      end = std::min(end, failing.size());
      const std::size_t first = end - std::min(end, part);
      Choices shorter = failing;
      const auto from = shorter.begin() + static_cast<std::ptrdiff_t>(first);
      const auto to = shorter.begin() + static_cast<std::ptrdiff_t>(end);
      if (std::all_of(from, to, [](std::uint16_t number) { return number == 0; })) {
        continue;
      }
      std::fill(from, to, std::uint16_t{0});
      drop_zeros_at_end(shorter);
      ++attempts;
      if (still_fails(shorter)) {
        failing = std::move(shorter);
      }
    }
  }
  return failing;
}

std::string to_text(const Choices& choices) {
  std::string text;
  for (std::size_t first = 0; first < choices.size();) {
    std::size_t end = first + 1;
    while (end < choices.size() && choices[end] == choices[first]) {
      ++end;
    }
    text += (text.empty() ? "" : ",") + std::to_string(choices[first]);
    if (end - first > 1) {
      text += "*" + std::to_string(end - first);
    }
    first = end;
  }
  return text;
}

std::optional<Choices> from_text(const std::string& text) {
  constexpr std::size_t repeats_max = 1'000'000;
  Choices choices;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    std::uint16_t number = 0;
    auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc{}) {
      return std::nullopt;
    }
    std::size_t repeats = 1;
    if (next < end && *next == '*') {
      std::tie(next, error) = [&] {
        const auto parsed = std::from_chars(next + 1, end, repeats);
        return std::pair{parsed.ptr, parsed.ec};
      }();
      if (error != std::errc{} || repeats > repeats_max) {
        return std::nullopt;
      }
    }
    choices.insert(choices.end(), repeats, number);
    if (next < end && (*next != ',' || next + 1 == end)) {
      return std::nullopt;
    }
    at = next + (next < end ? 1 : 0);
  }
  return choices;
}

}  // namespace troupe::test
