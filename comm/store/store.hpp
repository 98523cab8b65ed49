/// A small key-value store that the processes of a world share: where they find each other, agree
/// on which failure came first, and hear of each other's end. It carries control data, a few bytes
/// at a time, never payload.
///
/// `MemoryStore` is one inside a process; `TcpStore` is a client of a `StoreServer`.
///
/// Keys hold bytes. A log is a list of entries that only grows: every reader sees the same entries
/// in the same order. A will is an entry that the store appends for a client that has gone silent.
///
/// Every call has a deadline and returns no later than shortly after it; one that has passed
/// already is refused (timeout). Each call takes effect once, also if the connection was lost and
/// made anew meanwhile, or, after a failure, at most once.
///
/// Thread rules: any thread, any number of calls at a time; `close` too.
/// Errors: `timeout` (a key that was not set in time, a server that did not answer in time) and
/// `network` (no connection could be made, a secret was refused, the store was closed) name the
/// store and the key; `misuse`: a key or value beyond the limits, named, a full store, an `add` to
/// what is no number.
#pragma once

#include "troupe/comm/waiting.hpp"
#include "troupe/core/error.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// What one store takes.
struct StoreLimits {
  std::size_t key_bytes = 512;
  std::size_t value_bytes = std::size_t{1} << 20;    ///< of a value or an entry
  std::size_t total_bytes = std::size_t{256} << 20;  ///< of all keys, values and entries together
  std::size_t connections = 4096;
  /// What may wait for a client that does not take it; one frame always may.
  std::size_t outgoing_bytes = std::size_t{16} << 20;
};

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  virtual Result<void> set(std::string_view key, std::string_view value, TimePoint deadline) = 0;
  /// Waits until the key is set.
  virtual Result<std::string> get(std::string_view key, TimePoint deadline) = 0;
  /// Does not wait for the key: nothing, if it is not set.
  virtual Result<std::optional<std::string>> look(std::string_view key, TimePoint deadline) = 0;
  /// Waits until all are set; the error names those that are not.
  virtual Result<void> wait(std::span<const std::string> keys, TimePoint deadline) = 0;
  /// Adds to a decimal number (a missing key is 0) and returns the sum.
  virtual Result<std::int64_t> add(std::string_view key,
                                   std::int64_t amount,
                                   TimePoint deadline) = 0;
  /// If the key's value is `expected` (nothing: if it is not set) it becomes `desired`. Returns the
  /// value that the key has then, "" if it has none.
  virtual Result<std::string> compare_and_set(std::string_view key,
                                              std::optional<std::string_view> expected,
                                              std::string_view desired,
                                              TimePoint deadline) = 0;
  /// Whether there was such a key.
  virtual Result<bool> erase(std::string_view key, TimePoint deadline) = 0;

  /// Returns the entry's position, from 0.
  virtual Result<std::uint64_t> append(std::string_view log,
                                       std::string_view entry,
                                       TimePoint deadline) = 0;
  /// The entries from position `from` on; waits until there is one. Not more than fit one message:
  /// ask again for what follows.
  virtual Result<std::vector<std::string>> read(std::string_view log,
                                                std::uint64_t from,
                                                TimePoint deadline) = 0;
  /// From now on the store expects a sign of life of this client (which it gives by itself) at
  /// least every `silence`; else, or if its connection ends and is not made anew within `grace`,
  /// the store appends `entry` to `log`, once. A client has one will; a later one replaces it.
  virtual Result<void> leave_will(std::string_view log,
                                  std::string_view entry,
                                  Duration silence,
                                  Duration grace,
                                  TimePoint deadline) = 0;
  /// The client is about to end in good order: its will is void.
  virtual Result<void> revoke_will(TimePoint deadline) = 0;

  /// Ends all calls under way and refuses later ones (network). Does not wait. As with the client's
  /// destruction, its will comes true unless it was revoked.
  virtual void close() = 0;
};

/// Returns when `size` members, 0 to size - 1, have come to the barrier `name`, each once. The
/// error of a deadline names those that have not. For messages a member is a rank.
Result<void> barrier(Store& store, std::string_view name, int member, int size, TimePoint deadline);

}  // namespace troupe
