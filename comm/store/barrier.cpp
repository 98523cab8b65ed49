#include "troupe/comm/store/store.hpp"

#include <charconv>
#include <set>
#include <string>

namespace troupe {
namespace {

// "2, 5 and 7"; after eight only how many more.
std::string listed(const std::set<int>& members) {
  std::string text;
  std::size_t left = members.size();
  std::size_t shown = 0;
  for (const int member : members) {
    if (shown == 8 && left > 1) {
      return text + " and " + std::to_string(left) + " more";
    }
    text += (shown == 0 ? "" : left == 1 ? " and " : ", ") + std::to_string(member);
    ++shown;
    --left;
  }
  return text;
}

// Those of `size` members that the barrier's log does not have.
Result<std::set<int>> absent(Store& store, const std::string& log, int size) {
  // To name who is missing is worth a moment beyond the deadline.
  constexpr Duration first_moment = std::chrono::seconds{1};
  constexpr Duration next_moment = std::chrono::milliseconds{100};
  std::set<int> members;
  for (int member = 0; member < size; ++member) {
    members.insert(member);
  }
  // Whoever asks has an entry in the log, so at least that one comes at once.
  for (std::uint64_t at = 0; at < static_cast<std::uint64_t>(size);) {
    const Duration moment = at == 0 ? first_moment : next_moment;
    const auto entries = store.read(log, at, Clock::steady().now() + moment);
    if (!entries) {
      return at == 0 ? Result<std::set<int>>(entries.failure()) : members;
    }
    for (const auto& entry : entries.value()) {
      int member = -1;
      std::from_chars(entry.data(), entry.data() + entry.size(), member);
      members.erase(member);
    }
    at += entries.value().size();
  }
  return members;
}

}  // namespace

// Each member enters itself in a log; the one whose entry completes it opens the door for all, by a
// key. So each costs the store two requests, however many there are.
Result<void> barrier(
    Store& store, std::string_view name, int member, int size, TimePoint deadline) {
  const std::string log(name);
  const std::string open = log + "/open";
  const auto position = store.append(log, std::to_string(member), deadline);
  if (!position) {
    return position.failure();
  }
  if (position.value() + 1 == static_cast<std::uint64_t>(size)) {
    return store.set(open, "", deadline);
  }
  const auto opened = store.get(open, deadline);
  if (opened || opened.failure().code != ErrorCode::timeout) {
    return opened ? Result<void>() : Result<void>(opened.failure());
  }
  const auto missing = absent(store, log, size);
  if (!missing) {
    return opened.failure();
  }
  if (missing.value().empty()) {
    return {};  // the last one has come, and was cut off before it could open
  }
  return Failure{.code = ErrorCode::timeout,
                 .text = "barrier '" + log + "' of " + std::to_string(size) +
                         " ranks: " + (missing.value().size() == 1 ? "rank " : "ranks ") +
                         listed(missing.value()) + " did not come in time",
                 .rank = *missing.value().begin()};
}

}  // namespace troupe
