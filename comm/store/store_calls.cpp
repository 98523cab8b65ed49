#include "troupe/comm/store/store_calls.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace troupe::store {
namespace {

using std::chrono::milliseconds;

// The protocol has 32 bits for milliseconds, 49 days.
milliseconds bounded(Duration duration) {
  constexpr milliseconds longest{std::numeric_limits<std::uint32_t>::max()};
  return std::clamp(std::chrono::duration_cast<milliseconds>(duration), milliseconds{0}, longest);
}

Request request_of(Operation operation, std::string_view key, std::string_view value = {}) {
  return {.operation = operation, .keys = {std::string(key)}, .value = std::string(value)};
}

Result<void> done(const Result<Response>& response) {
  return response ? Result<void>() : Result<void>(response.failure());
}

}  // namespace

Failure StoreCalls::failure(ErrorCode code, const Request& request, std::string_view what) const {
  std::string text = place() + ", " + to_string(request.operation);
  for (std::size_t i = 0; i < std::min<std::size_t>(request.keys.size(), 8); ++i) {
    text += (i == 0 ? " " : ", ") + quoted(request.keys[i]);
  }
  if (request.keys.size() > 8) {
    text += " and " + std::to_string(request.keys.size() - 8) + " more";
  }
  text += ": ";
  text += what;
  return {.code = code, .text = std::move(text)};
}

Result<Response> StoreCalls::ask(Request request, TimePoint deadline) {
  const auto now = Clock::steady().now();
  if (deadline <= now) {
    return failure(ErrorCode::timeout, request, "the deadline had passed before the call");
  }
  request.timeout = bounded(deadline - now);
  Request asked = request;
  asked.value.clear();  // only keys are needed to say what failed
  auto response = call(std::move(request), deadline);
  if (!response) {
    return response;
  }
  switch (response.value().status) {
    case Status::ok:
    case Status::missing:
      return response;
    case Status::late: {
      if (asked.operation == Operation::wait) {
        asked.keys = response.value().entries;
      }
      const bool read = asked.operation == Operation::read;
      return failure(ErrorCode::timeout, asked, read ? "no such entry in time" : "not set in time");
    }
    case Status::refused:
      return failure(ErrorCode::misuse, asked, response.value().value);
  }
  return failure(ErrorCode::internal, asked, "an answer without a meaning");
}

Result<void> StoreCalls::set(std::string_view key, std::string_view value, TimePoint deadline) {
  return done(ask(request_of(Operation::set, key, value), deadline));
}

Result<std::string> StoreCalls::get(std::string_view key, TimePoint deadline) {
  auto response = ask(request_of(Operation::get, key), deadline);
  if (!response) {
    return response.failure();
  }
  return std::move(response.value().value);
}

Result<std::optional<std::string>> StoreCalls::look(std::string_view key, TimePoint deadline) {
  auto response = ask(request_of(Operation::look, key), deadline);
  if (!response) {
    return response.failure();
  }
  if (response.value().status == Status::missing) {
    return std::optional<std::string>();
  }
  return std::optional(std::move(response.value().value));
}

Result<void> StoreCalls::wait(std::span<const std::string> keys, TimePoint deadline) {
  return done(ask({.operation = Operation::wait, .keys = {keys.begin(), keys.end()}}, deadline));
}

Result<std::int64_t> StoreCalls::add(std::string_view key,
                                     std::int64_t amount,
                                     TimePoint deadline) {
  Request request = request_of(Operation::add, key);
  request.amount = amount;
  const auto response = ask(std::move(request), deadline);
  if (!response) {
    return response.failure();
  }
  return response.value().count;
}

Result<std::string> StoreCalls::compare_and_set(std::string_view key,
                                                std::optional<std::string_view> expected,
                                                std::string_view desired,
                                                TimePoint deadline) {
  Request request = request_of(Operation::compare_and_set, key, desired);
  if (expected) {
    request.expected = std::string(*expected);
  }
  auto response = ask(std::move(request), deadline);
  if (!response) {
    return response.failure();
  }
  return std::move(response.value().value);
}

Result<bool> StoreCalls::erase(std::string_view key, TimePoint deadline) {
  const auto response = ask(request_of(Operation::erase, key), deadline);
  if (!response) {
    return response.failure();
  }
  return response.value().status == Status::ok;
}

Result<std::uint64_t> StoreCalls::append(std::string_view log,
                                         std::string_view entry,
                                         TimePoint deadline) {
  const auto response = ask(request_of(Operation::append, log, entry), deadline);
  if (!response) {
    return response.failure();
  }
  return static_cast<std::uint64_t>(response.value().count);
}

Result<std::vector<std::string>> StoreCalls::read(std::string_view log,
                                                  std::uint64_t from,
                                                  TimePoint deadline) {
  Request request = request_of(Operation::read, log);
  request.from = from;
  auto response = ask(std::move(request), deadline);
  if (!response) {
    return response.failure();
  }
  return std::move(response.value().entries);
}

Result<void> StoreCalls::leave_will(std::string_view log,
                                    std::string_view entry,
                                    Duration silence,
                                    Duration grace,
                                    TimePoint deadline) {
  Request request = request_of(Operation::leave_will, log, entry);
  request.silence = bounded(silence);
  request.grace = bounded(grace);
  return done(ask(std::move(request), deadline));
}

Result<void> StoreCalls::revoke_will(TimePoint deadline) {
  return done(ask({.operation = Operation::revoke_will}, deadline));
}

}  // namespace troupe::store
