// Clients of a store behind a bad network: what is done once, what a lost connection costs, wills.
#include "support/cutting_proxy.hpp"
#include "support/tcp_stores.hpp"

#include <doctest/doctest.h>

#include <map>

namespace troupe::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct BadNetwork {
  BadNetwork() : proxy(stores.server->address().port) {}

  TcpStoreOptions options() const {
    TcpStoreOptions options;
    options.server = {"127.0.0.1", proxy.port()};
    options.secret = stores.secret;
    options.reconnect_limit = seconds{60};
    return options;
  }
  std::unique_ptr<Store> client() const { return connect(options()); }

  TcpStores stores;
  CuttingProxy proxy;
};

TEST_CASE("sums and logs are exact though connections are cut again and again") {
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    BadNetwork network;
    constexpr int clients = 8;
    constexpr int rounds = 40;
    auto connected = std::vector<std::unique_ptr<Store>>();
    for (int i = 0; i < clients; ++i) {
      connected.push_back(network.client());
    }
    network.proxy.cut_after(seed, 2000);
    network.proxy.cut_all();
    std::vector<std::string> by_position(clients * rounds);
    std::vector<std::vector<std::int64_t>> sums(clients);
    std::vector<int> won(clients);
    on_threads(2 * clients, [&](int i) {
      // Two threads for each client, so that several calls are under way when it is cut.
      const auto own = static_cast<std::size_t>(i / 2);
      auto& client = *connected[own];
      for (int round = 0; round < rounds; ++round) {
        if (i % 2 == 0) {
          const auto sum = client.add("sum", 1, in_time());
          REQUIRE_MESSAGE(sum, sum.failure().text);
          sums[own].push_back(sum.value());
          const std::string name = std::to_string(own);
          const auto first =
              client.compare_and_set("round " + std::to_string(round), {}, name, in_time());
          REQUIRE_MESSAGE(first, first.failure().text);
          won[own] += first.value() == name;
        } else {
          const std::string entry = std::to_string(own) + ":" + std::to_string(round);
          const auto position = client.append("log", entry, in_time());
          REQUIRE_MESSAGE(position, position.failure().text);
          by_position.at(position.value()) += entry;
        }
      }
    });
    MESSAGE("seed ", seed, ": ", network.proxy.cuts(), " cuts of ", network.proxy.connections(),
            " connections");
    CHECK(network.proxy.cuts() > 10);

    auto reader = network.stores.client();
    std::set<std::int64_t> all;
    for (const auto& own : sums) {
      CHECK(std::ranges::is_sorted(own));
      all.insert(own.begin(), own.end());
    }
    CHECK(all.size() == clients * rounds);
    CHECK(*all.rbegin() == clients * rounds);
    CHECK(reader->get("sum", in_time()).value() == std::to_string(clients * rounds));
    check_log(*reader, "log", by_position);
    int wins = 0;
    for (const int own : won) {
      wins += own;
    }
    CHECK(wins == rounds);
  }
}

TEST_CASE("a call under way survives a lost connection") {
  BadNetwork network;
  auto client = network.client();
  auto other = network.stores.client();
  on_threads(2, [&](int i) {
    if (i == 0) {
      CHECK(client->get("key", in_time()).value() == "value");
    } else {
      for (int cut = 1; cut <= 3; ++cut) {
        const int before = network.proxy.connections();
        network.proxy.cut_all();
        while (network.proxy.connections() == before) {
          std::this_thread::yield();
        }
      }
      REQUIRE(other->set("key", "value", in_time()));
    }
  });
}

TEST_CASE("calls end at their own deadline while there is no connection") {
  BadNetwork network;
  auto client = network.client();
  network.proxy.keep_out(true);
  network.proxy.cut_all();
  const auto late = client->get("key", Clock::steady().now() + milliseconds{100});
  check_fails(late, ErrorCode::timeout, {"'key'", "no connection"});
  CHECK(code_of(client->add("sum", 1, Clock::steady().now() + milliseconds{100})) ==
        ErrorCode::timeout);
  network.proxy.keep_out(false);
  CHECK(client->set("key", "", in_time()));
  // Of what failed nothing comes after all.
  CHECK(client->look("sum", in_time()).value() == std::nullopt);
}

TEST_CASE("a connection that cannot be made again fails all calls, within its limit") {
  BadNetwork network;
  TcpStoreOptions options = network.options();
  options.reconnect_limit = milliseconds{200};
  auto client = connect(options);
  on_threads(3, [&](int i) {
    if (i == 2) {
      network.proxy.keep_out(true);
      network.proxy.cut_all();
      return;
    }
    check_fails(client->get("never", in_time()), ErrorCode::network,
                {"'never'", "lost", "could not be made again"});
  });
  check_fails(client->set("key", "", in_time()), ErrorCode::network, {"lost"});
}

TEST_CASE("a server that answers nothing any more counts as lost") {
  BadNetwork network;
  TcpStoreOptions options = network.options();
  options.silence_limit = milliseconds{200};
  options.reconnect_limit = milliseconds{100};
  auto client = connect(options);
  network.proxy.hold(true);
  check_fails(client->get("never", in_time()), ErrorCode::network, {"lost"});
}

TEST_CASE("a client outlives a silence of the network") {
  BadNetwork network;
  TcpStoreOptions options = network.options();
  options.silence_limit = milliseconds{100};
  auto client = connect(options);
  REQUIRE(client->set("key", "1", in_time()));
  const int before = network.proxy.connections();
  network.proxy.hold(true);
  on_threads(2, [&](int i) {
    if (i == 0) {
      CHECK(client->add("sum", 1, in_time()).value() == 1);
    } else {
      while (network.proxy.connections() == before) {
        std::this_thread::yield();
      }
      network.proxy.hold(false);
    }
  });
  CHECK(client->add("sum", 1, in_time()).value() == 2);
}

TEST_CASE("a server that was started anew does not pass for the old one") {
  StoreServerOptions options;
  options.secret = "a secret";
  auto server = start_server(options);
  options.listen.port = server->address().port;
  auto client = connect({.server = server->address(), .secret = "a secret"});
  REQUIRE(client->set("key", "value", in_time()));
  server.reset();
  server = start_server(options);
  check_fails(client->get("key", in_time()), ErrorCode::network, {"'key'", "started anew"});
}

// ---- wills --------------------------------------------------------------------------------------

TEST_CASE("the will of a client that is cut off comes true, and not if it comes back in time") {
  BadNetwork network;
  auto reader = network.stores.client();
  auto lost = network.client();
  REQUIRE(lost->leave_will("log", "lost", hour, milliseconds{50}, in_time()));
  network.proxy.keep_out(true);
  network.proxy.cut_all();
  check_log(*reader, "log", {"lost"});
  network.proxy.keep_out(false);

  auto back = network.client();
  REQUIRE(back->leave_will("log", "back", hour, hour, in_time()));
  const int before = network.proxy.connections();
  network.proxy.cut_all();
  while (network.proxy.connections() < before + 2) {  // both have come back
    std::this_thread::yield();
  }
  REQUIRE(back->set("key", "", in_time()));
  check_log(*reader, "log", {"lost"});
  back.reset();
  check_log(*reader, "log", {"lost", "back"});
}

TEST_CASE("the will of a silent client comes true, though its connection stands") {
  BadNetwork network;
  auto reader = network.stores.client();
  auto silent = network.client();
  REQUIRE(silent->leave_will("log", "silent", milliseconds{200}, hour, in_time()));
  network.proxy.hold(true);
  check_log(*reader, "log", {"silent"});
  network.proxy.hold(false);
}

TEST_CASE("a client whose threads have nothing to say gives signs of life by itself") {
  TcpStores stores;
  auto reader = stores.client();
  auto idle = stores.client();
  REQUIRE(idle->leave_will("log", "dead", milliseconds{400}, hour, in_time()));
  CHECK(code_of(reader->read("log", 0, Clock::steady().now() + milliseconds{1500})) ==
        ErrorCode::timeout);
  REQUIRE(idle->revoke_will(in_time()));
}

}  // namespace
}  // namespace troupe::test
