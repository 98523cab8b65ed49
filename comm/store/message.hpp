/// What clients ask a store and what it answers, as values; protocol.md has them as bytes.
///
/// A client numbers its requests 1, 2, 3, ... and may have many under way. If the connection is
/// lost, it sends those not answered yet again on the next one; the store knows them by session
/// and number, and each takes effect once ([Note: once] in store_state.hpp).
#pragma once

#include "troupe/comm/store/store.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::store {

/// The values are those of the protocol. An operation that changes something is never done again.
enum class Operation : std::uint8_t {
  set = 1,
  get = 2,
  look = 3,
  wait = 4,
  add = 5,
  compare_and_set = 6,
  erase = 7,
  append = 8,
  read = 9,
  leave_will = 10,
  revoke_will = 11,
};

constexpr const char* to_string(Operation operation) {
  switch (operation) {
    case Operation::set:
      return "set";
    case Operation::get:
      return "get";
    case Operation::look:
      return "look";
    case Operation::wait:
      return "wait";
    case Operation::add:
      return "add";
    case Operation::compare_and_set:
      return "compare_and_set";
    case Operation::erase:
      return "erase";
    case Operation::append:
      return "append";
    case Operation::read:
      return "read";
    case Operation::leave_will:
      return "leave_will";
    case Operation::revoke_will:
      return "revoke_will";
  }
  return "?";
}

constexpr bool changes_something(Operation operation) {
  switch (operation) {
    case Operation::get:
    case Operation::look:
    case Operation::wait:
    case Operation::read:
      return false;
    default:
      return true;
  }
}

/// Whether it may take time: until a key is set, or there is an entry.
constexpr bool waits(Operation operation) {
  return operation == Operation::get || operation == Operation::wait ||
         operation == Operation::read;
}

/// One request; what an operation has no use for stays as it is here.
struct Request {
  std::uint64_t number = 0;  ///< from 1
  /// The client has its answers to all requests below this number, or no longer wants them.
  std::uint64_t settled_below = 0;
  Operation operation = Operation::revoke_will;
  /// How long to wait for a key or an entry (get, wait, read), from the request's arrival.
  std::chrono::milliseconds timeout{0};
  std::vector<std::string> keys{};        ///< the key or log; several with wait only
  std::string value{};                    ///< value, entry, or what is desired
  std::optional<std::string> expected{};  ///< compare_and_set
  std::int64_t amount = 0;                ///< add
  std::uint64_t from = 0;                 ///< read
  std::chrono::milliseconds silence{0};   ///< leave_will
  std::chrono::milliseconds grace{0};     ///< leave_will

  bool operator==(const Request&) const = default;
};

enum class Status : std::uint8_t {
  ok = 0,
  missing = 1,  ///< look, erase, compare_and_set: there is no such key
  late = 2,     ///< get, wait, read: not within the timeout; `entries` are the keys missed
  refused = 3,  ///< `value` says why; nothing was changed
};

struct Response {
  std::uint64_t number = 0;  ///< the request's
  Status status = Status::ok;
  std::string value{};                 ///< get, look, compare_and_set
  std::int64_t count = 0;              ///< add: the sum; append: the entry's position
  std::vector<std::string> entries{};  ///< read

  bool operator==(const Response&) const = default;
};

/// What of the request is too large for a store with these limits, if anything.
std::optional<std::string> beyond_limits(const Request& request, const StoreLimits& limits);

/// A key for a message: in quotes, cut after 80 bytes, with '?' for what cannot be printed.
std::string quoted(std::string_view key);

}  // namespace troupe::store
