/// What every store guarantees, as test cases over a set of clients of one store. A test program
/// includes this and instantiates each case for its fixture:
///
///     struct MemoryStores {
///       explicit MemoryStores(StoreLimits limits = {});
///       std::unique_ptr<Store> client();
///     };
///     TEST_CASE_TEMPLATE_INVOKE(store_contract_values, MemoryStores);
#pragma once

#include "troupe/comm/store/store.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {

inline constexpr int store_world_sizes[] = {1, 2, 3, 4, 7};

/// For what has to succeed, and for what has to fail for want of time.
inline TimePoint in_time() {
  return Clock::steady().now() + std::chrono::seconds{60};
}
inline TimePoint at_once() {
  return Clock::steady().now() + std::chrono::milliseconds{100};
}

template <class Stores>
std::vector<std::unique_ptr<Store>> clients_of(Stores& stores, int count) {
  std::vector<std::unique_ptr<Store>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(stores.client());
  }
  return clients;
}

/// Runs `body(client index)` on a thread each.
template <class Body>
void on_threads(int count, Body body) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&body, i] { body(i); });
  }
}

/// All entries of a log that has `count` of them, in order.
inline std::vector<std::string> whole_log(Store& store, const std::string& log, std::size_t count) {
  std::vector<std::string> entries;
  while (entries.size() < count) {
    auto more = store.read(log, entries.size(), in_time());
    REQUIRE_MESSAGE(more, more.failure().text);
    REQUIRE_FALSE(more.value().empty());
    std::ranges::move(more.value(), std::back_inserter(entries));
  }
  return entries;
}

/// Nothing, if it has not failed.
template <class T>
std::optional<ErrorCode> code_of(const Result<T>& result) {
  return result ? std::nullopt : std::optional(result.failure().code);
}

/// It has failed with this code, and with these words in its text.
template <class T>
void check_fails(const Result<T>& result, ErrorCode code, std::vector<std::string> words) {
  CHECK_MESSAGE(code_of(result) == code, (result ? "no failure" : result.failure().text));
  if (result) {
    return;
  }
  for (const auto& word : words) {
    CHECK_MESSAGE(result.failure().text.find(word) != std::string::npos, result.failure().text,
                  " lacks ", word);
  }
}

/// Nothing more than these entries is in the log, now.
inline void check_log(Store& store, const std::string& log, std::vector<std::string> right) {
  CHECK(whole_log(store, log, right.size()) == right);
  CHECK(code_of(store.read(log, right.size(), at_once())) == ErrorCode::timeout);
}

// ---- keys ---------------------------------------------------------------------------------------

TEST_CASE_TEMPLATE_DEFINE("every client sees the value that was set last",
                          Stores,
                          store_contract_values) {
  Stores stores;
  auto clients = clients_of(stores, 3);
  for (const std::string& value : {std::string("one"), std::string(), std::string("a\0b\xff", 4)}) {
    REQUIRE(clients[0]->set("key", value, in_time()));
    for (auto& client : clients) {
      CHECK(client->get("key", in_time()).value() == value);
      CHECK(client->look("key", in_time()).value() == value);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("keys are told apart byte by byte", Stores, store_contract_keys) {
  Stores stores;
  auto client = stores.client();
  const std::vector<std::string> keys = {"",  "a", "a ", std::string("a\0", 2), "\xff",
                                         "A", "ä", "b",  std::string(512, 'k')};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    REQUIRE(client->set(keys[i], std::to_string(i), in_time()));
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    CHECK(client->get(keys[i], in_time()).value() == std::to_string(i));
  }
}

TEST_CASE_TEMPLATE_DEFINE("get waits for another client's set", Stores, store_contract_get_waits) {
  Stores stores;
  auto clients = clients_of(stores, 4);
  std::atomic<int> right = 0;
  on_threads(4, [&](int i) {
    auto& client = *clients[static_cast<std::size_t>(i)];
    if (i == 3) {
      for (int key = 0; key < 3; ++key) {
        right += client.set("key " + std::to_string(key), std::to_string(key), in_time()).ok();
      }
    } else {
      const auto got = client.get("key " + std::to_string(i), in_time());
      right += got && got.value() == std::to_string(i);
    }
  });
  CHECK(right == 6);
}

TEST_CASE_TEMPLATE_DEFINE("what is not set in time is named", Stores, store_contract_late) {
  Stores stores;
  auto client = stores.client();
  check_fails(client->get("absent", at_once()), ErrorCode::timeout,
              {"the store", "get", "'absent'", "not set in time"});
  check_fails(client->read("no log", 0, at_once()), ErrorCode::timeout,
              {"the store", "read", "'no log'"});
  CHECK(client->look("absent", in_time()).value() == std::nullopt);

  REQUIRE(client->set("there", "", in_time()));
  const std::vector<std::string> keys = {"there", "absent", "gone"};
  const auto late = client->wait(keys, at_once());
  check_fails(late, ErrorCode::timeout, {"wait", "'absent', 'gone'"});
  CHECK((!late && late.failure().text.find("'there'") == std::string::npos));
}

TEST_CASE_TEMPLATE_DEFINE("a wait ends when all keys are set, in whatever order",
                          Stores,
                          store_contract_wait) {
  for (const int size : store_world_sizes) {
    Stores stores;
    auto clients = clients_of(stores, size);
    std::vector<std::string> keys;
    for (int i = 0; i < size; ++i) {
      keys.push_back("rank/" + std::to_string(i));
    }
    std::atomic<int> right = 0;
    on_threads(size, [&](int i) {
      auto& client = *clients[static_cast<std::size_t>(i)];
      right += client.set(keys[static_cast<std::size_t>(size - 1 - i)], "", in_time()).ok();
      right += client.wait(keys, in_time()).ok();
      for (const auto& key : keys) {
        right += client.look(key, in_time()).value().has_value();
      }
    });
    CHECK(right == size * (2 + size));
    CHECK(clients[0]->wait({}, in_time()));
  }
}

TEST_CASE_TEMPLATE_DEFINE("additions of many clients add up, each sum seen once",
                          Stores,
                          store_contract_add) {
  constexpr int rounds = 50;
  for (const int size : store_world_sizes) {
    Stores stores;
    auto clients = clients_of(stores, size);
    std::vector<std::vector<std::int64_t>> sums(static_cast<std::size_t>(size));
    on_threads(size, [&](int i) {
      for (int round = 0; round < rounds; ++round) {
        const auto own = static_cast<std::size_t>(i);
        sums[own].push_back(clients[own]->add("sum", 3, in_time()).value());
      }
    });
    std::set<std::int64_t> all;
    for (const auto& own : sums) {
      CHECK(std::ranges::is_sorted(own));
      all.insert(own.begin(), own.end());
    }
    CHECK(all.size() == static_cast<std::size_t>(size * rounds));
    CHECK(*all.rbegin() == 3 * size * rounds);
    CHECK(clients[0]->get("sum", in_time()).value() == std::to_string(3 * size * rounds));
    CHECK(clients[0]->add("sum", -3 * size * rounds, in_time()).value() == 0);
  }
}

TEST_CASE_TEMPLATE_DEFINE("a sum that is no 64-bit number is refused and changes nothing",
                          Stores,
                          store_contract_add_refused) {
  Stores stores;
  auto client = stores.client();
  for (const std::string value : {"", "word", "12 ", "1e3", "99999999999999999999"}) {
    REQUIRE(client->set("key", value, in_time()));
    check_fails(client->add("key", 1, in_time()), ErrorCode::misuse, {"'key'", "number"});
    CHECK(client->get("key", in_time()).value() == value);
  }
  REQUIRE(client->set("key", "9223372036854775807", in_time()));
  check_fails(client->add("key", 1, in_time()), ErrorCode::misuse, {"'key'", "64 bits"});
  CHECK(client->add("key", -1, in_time()).value() == 9223372036854775806);
}

TEST_CASE_TEMPLATE_DEFINE("of many clients that compare and set, one wins and all learn who",
                          Stores,
                          store_contract_compare_and_set) {
  for (const int size : store_world_sizes) {
    Stores stores;
    auto clients = clients_of(stores, size);
    std::vector<std::string> seen(static_cast<std::size_t>(size));
    on_threads(size, [&](int i) {
      const auto own = static_cast<std::size_t>(i);
      seen[own] = clients[own]->compare_and_set("first", {}, std::to_string(i), in_time()).value();
    });
    const auto winner = clients[0]->get("first", in_time()).value();
    CHECK(std::ranges::count(seen, winner) == size);
    CHECK(clients[0]->compare_and_set("first", "nobody", "x", in_time()).value() == winner);
    CHECK(clients[0]->compare_and_set("first", winner, "", in_time()).value().empty());
    CHECK(clients[0]->compare_and_set("first", {}, "y", in_time()).value().empty());
    CHECK(clients[0]->compare_and_set("first", "", "z", in_time()).value() == "z");
    CHECK(clients[0]->compare_and_set("no key", "", "z", in_time()).value().empty());
    CHECK(clients[0]->look("no key", in_time()).value() == std::nullopt);
  }
}

TEST_CASE_TEMPLATE_DEFINE("an erased key is not there, and may be set again",
                          Stores,
                          store_contract_erase) {
  Stores stores;
  auto client = stores.client();
  CHECK_FALSE(client->erase("key", in_time()).value());
  REQUIRE(client->set("key", "value", in_time()));
  CHECK(client->erase("key", in_time()).value());
  CHECK_FALSE(client->erase("key", in_time()).value());
  CHECK(client->look("key", in_time()).value() == std::nullopt);
  CHECK(code_of(client->get("key", at_once())) == ErrorCode::timeout);
  CHECK(client->add("key", 7, in_time()).value() == 7);
}

// ---- logs ---------------------------------------------------------------------------------------

TEST_CASE_TEMPLATE_DEFINE("all readers see the same entries in the same order, while it grows",
                          Stores,
                          store_contract_log) {
  constexpr int rounds = 40;
  for (const int size : store_world_sizes) {
    Stores stores;
    auto clients = clients_of(stores, 2 * size);
    const auto total = static_cast<std::size_t>(size * rounds);
    std::vector<std::vector<std::string>> seen(static_cast<std::size_t>(size));
    std::vector<std::string> by_position(total);
    on_threads(2 * size, [&](int i) {
      auto& client = *clients[static_cast<std::size_t>(i)];
      if (i >= size) {
        seen[static_cast<std::size_t>(i - size)] = whole_log(client, "log", total);
        return;
      }
      for (int round = 0; round < rounds; ++round) {
        const std::string entry = std::to_string(i) + ":" + std::to_string(round);
        by_position.at(client.append("log", entry, in_time()).value()) = entry;
      }
    });
    for (const auto& each : seen) {
      CHECK(each == by_position);
    }
    CHECK(std::set(by_position.begin(), by_position.end()).size() == total);
  }
}

TEST_CASE_TEMPLATE_DEFINE("a long log is read in pieces that fit a message",
                          Stores,
                          store_contract_log_pieces) {
  Stores stores(StoreLimits{.value_bytes = 1000});
  auto client = stores.client();
  std::vector<std::string> right;
  for (int i = 0; i < 20; ++i) {
    right.push_back(std::string(i % 5 == 0 ? 1000 : 300, static_cast<char>('a' + i)));
    REQUIRE(client->append("log", right.back(), in_time()));
  }
  CHECK(client->read("log", 0, in_time()).value().size() == 1);
  CHECK(client->read("log", 1, in_time()).value().size() == 3);
  check_log(*client, "log", right);
  CHECK(whole_log(*client, "log", 20).back() == right.back());
  CHECK(client->read("log", 19, in_time()).value().size() == 1);
}

// ---- limits -------------------------------------------------------------------------------------

TEST_CASE_TEMPLATE_DEFINE("what is beyond the limits is refused by name and changes nothing",
                          Stores,
                          store_contract_limits) {
  Stores stores(StoreLimits{.key_bytes = 8, .value_bytes = 100, .total_bytes = 2000});
  auto client = stores.client();
  REQUIRE(client->set("12345678", std::string(100, 'v'), in_time()));
  check_fails(client->set("123456789", "", in_time()), ErrorCode::misuse,
              {"'123456789'", "9 bytes", "takes 8"});
  check_fails(client->get("123456789", in_time()), ErrorCode::misuse, {"9 bytes"});
  check_fails(client->set("key", std::string(101, 'v'), in_time()), ErrorCode::misuse,
              {"'key'", "101 bytes", "takes 100"});
  check_fails(client->compare_and_set("key", std::string(101, 'v'), "", in_time()),
              ErrorCode::misuse, {"'key'", "101 bytes"});
  check_fails(client->append("log", std::string(101, 'v'), in_time()), ErrorCode::misuse,
              {"'log'", "101 bytes"});
  CHECK(client->look("key", in_time()).value() == std::nullopt);

  int added = 0;
  while (client->append("log", std::string(100, 'e'), in_time())) {
    ++added;
  }
  CHECK(added == (2000 - 64 - 8 - 100) / (64 + 3 + 100));
  check_fails(client->append("log", std::string(100, 'e'), in_time()), ErrorCode::misuse, {"full"});
  check_fails(client->set("key", std::string(100, 'e'), in_time()), ErrorCode::misuse, {"full"});
  CHECK(client->set("12345678", std::string(100, 'w'), in_time()));  // takes no more room
  CHECK(client->erase("12345678", in_time()).value());
  CHECK(client->set("key", std::string(50, 'e'), in_time()));
}

TEST_CASE_TEMPLATE_DEFINE("a call whose deadline has passed is refused and has no effect",
                          Stores,
                          store_contract_passed) {
  Stores stores;
  auto client = stores.client();
  check_fails(client->set("key", "", Clock::steady().now()), ErrorCode::timeout,
              {"'key'", "deadline"});
  CHECK(code_of(client->add("sum", 1, TimePoint())) == ErrorCode::timeout);
  CHECK(client->look("key", in_time()).value() == std::nullopt);
  CHECK(client->look("sum", in_time()).value() == std::nullopt);
}

// ---- wills --------------------------------------------------------------------------------------

inline constexpr Duration hour = std::chrono::hours{1};

TEST_CASE_TEMPLATE_DEFINE("a client's will comes true once when it ends, unless it was revoked",
                          Stores,
                          store_contract_wills) {
  Stores stores;
  auto reader = stores.client();
  auto silent = stores.client();
  auto revoked = stores.client();
  auto replaced = stores.client();
  auto closed = stores.client();
  REQUIRE(silent->leave_will("log", "silent", hour, hour, in_time()));
  REQUIRE(revoked->leave_will("log", "revoked", hour, hour, in_time()));
  REQUIRE(replaced->leave_will("log", "old", hour, hour, in_time()));
  REQUIRE(replaced->leave_will("log", "new", hour, hour, in_time()));
  REQUIRE(closed->leave_will("log", "closed", hour, hour, in_time()));
  REQUIRE(revoked->revoke_will(in_time()));
  CHECK(code_of(reader->read("log", 0, at_once())) == ErrorCode::timeout);

  revoked.reset();
  silent.reset();
  check_log(*reader, "log", {"silent"});
  replaced.reset();
  check_log(*reader, "log", {"silent", "new"});
  closed->close();
  check_log(*reader, "log", {"silent", "new", "closed"});
  closed.reset();
  check_log(*reader, "log", {"silent", "new", "closed"});
}

TEST_CASE_TEMPLATE_DEFINE("a will without silence is refused", Stores, store_contract_no_silence) {
  Stores stores;
  auto client = stores.client();
  check_fails(client->leave_will("log", "", Duration::zero(), hour, in_time()), ErrorCode::misuse,
              {"'log'", "silence"});
  CHECK(client->revoke_will(in_time()));  // of none
}

// ---- closing ------------------------------------------------------------------------------------

TEST_CASE_TEMPLATE_DEFINE("closing a client ends all its calls and refuses later ones",
                          Stores,
                          store_contract_close) {
  Stores stores;
  auto client = stores.client();
  auto other = stores.client();
  std::atomic<int> ended = 0;
  on_threads(5, [&](int i) {
    if (i == 4) {
      // All four wait, or are about to.
      REQUIRE(other->wait(std::vector<std::string>{"0", "1", "2", "3"}, in_time()));
      client->close();
      return;
    }
    REQUIRE(other->set(std::to_string(i), "", in_time()));
    if (i % 2 == 0) {
      check_fails(client->get("never", in_time()), ErrorCode::network, {"'never'", "closed"});
    } else {
      check_fails(client->read("never", 0, in_time()), ErrorCode::network, {"'never'", "closed"});
    }
    ++ended;
  });
  CHECK(ended == 4);
  check_fails(client->set("key", "", in_time()), ErrorCode::network, {"closed"});
  client->close();  // again
  CHECK(other->look("key", in_time()).value() == std::nullopt);
}

// ---- many threads of one client -----------------------------------------------------------------

TEST_CASE_TEMPLATE_DEFINE("calls of many threads of one client do not disturb each other",
                          Stores,
                          store_contract_threads) {
  Stores stores;
  auto client = stores.client();
  constexpr int threads = 7;
  std::atomic<int> right = 0;
  on_threads(threads, [&](int i) {
    // Each gives the next its turn.
    for (int round = 0; round < 20; ++round) {
      const std::string turn = std::to_string(round) + "/";
      if (i > 0) {
        right += client->get(turn + std::to_string(i), in_time()).value() == "go";
      }
      right += client->set(turn + std::to_string(i + 1), "go", in_time()).ok();
    }
  });
  CHECK(right == 20 * (2 * threads - 1));
}

// ---- barriers -----------------------------------------------------------------------------------

TEST_CASE_TEMPLATE_DEFINE("nobody leaves a barrier before all have come",
                          Stores,
                          store_contract_barrier) {
  for (const int size : store_world_sizes) {
    Stores stores;
    auto clients = clients_of(stores, size);
    std::vector<std::atomic<int>> come(10);
    std::atomic<int> right = 0;
    on_threads(size, [&](int i) {
      for (std::size_t round = 0; round < come.size(); ++round) {
        ++come[round];
        const auto passed = barrier(*clients[static_cast<std::size_t>(i)],
                                    "round " + std::to_string(round), i, size, in_time());
        right += passed && come[round] == size;
      }
    });
    CHECK(right == 10 * size);
  }
}

TEST_CASE_TEMPLATE_DEFINE("a barrier names those who did not come",
                          Stores,
                          store_contract_barrier_late) {
  Stores stores;
  auto clients = clients_of(stores, 4);
  // To come takes time, too.
  const auto soon = [] { return Clock::steady().now() + std::chrono::seconds{2}; };
  on_threads(4, [&](int i) {
    if (i == 1 || i == 3) {
      const auto late = barrier(*clients[static_cast<std::size_t>(i)], "start", i, 4, soon());
      check_fails(late, ErrorCode::timeout,
                  {"barrier 'start' of 4 ranks", "ranks 0", "did not come in time"});
    }
  });
  const auto late = barrier(*clients[0], "start", 0, 4, soon());
  check_fails(late, ErrorCode::timeout, {"rank 2 did not come"});
  CHECK((!late && late.failure().rank == 2));
  CHECK(barrier(*clients[2], "start", 2, 4, in_time()));
}

/// All of them, for one fixture or several.
#define TROUPE_STORE_CONTRACT(...)                                        \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_values, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_keys, __VA_ARGS__);            \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_get_waits, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_late, __VA_ARGS__);            \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_wait, __VA_ARGS__);            \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_add, __VA_ARGS__);             \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_add_refused, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_compare_and_set, __VA_ARGS__); \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_erase, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_log, __VA_ARGS__);             \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_log_pieces, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_limits, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_passed, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_wills, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_no_silence, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_close, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_threads, __VA_ARGS__);         \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_barrier, __VA_ARGS__);         \
  TEST_CASE_TEMPLATE_INVOKE(store_contract_barrier_late, __VA_ARGS__)

}  // namespace troupe::test
