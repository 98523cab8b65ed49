// What a server and its clients do beside the calls of `Store`: addresses, names, their end.
#include "support/cutting_proxy.hpp"
#include "support/tcp_stores.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <fcntl.h>
#include <filesystem>

namespace troupe::test {
namespace {

using std::chrono::milliseconds;

// ---- addresses ----------------------------------------------------------------------------------

TEST_CASE("a store without a secret is served on loopback only") {
  for (const std::string& host : {std::string("0.0.0.0"), std::string("::")}) {
    StoreServerOptions options;
    options.listen.host = host;
    check_fails(StoreServer::start(options), ErrorCode::bad_configuration, {host, "secret"});
  }
  StoreServerOptions options;
  options.listen.host = "0.0.0.0";
  options.secret = "a secret";
  const auto server = start_server(options);
  CHECK(server->address().host == "0.0.0.0");
  const StoreAddress here{"127.0.0.1", server->address().port};
  CHECK(connect({.server = here, .secret = "a secret"})->set("key", "", in_time()));

  options.listen.host = "127.0.0.2";
  options.secret.clear();
  CHECK(start_server(options)->address().host == "127.0.0.2");
}

TEST_CASE("hosts have names") {
  StoreServerOptions options;
  options.listen.host = "localhost";
  const auto server = start_server(options);
  CHECK(server->address().port != 0);
  const StoreAddress address{"localhost", server->address().port};
  CHECK(connect({.server = address})->set("key", "", in_time()));
}

TEST_CASE("an address that cannot be listened on is named") {
  const auto server = start_server({});
  const std::string port = std::to_string(server->address().port);
  StoreServerOptions options;
  options.listen = server->address();
  check_fails(StoreServer::start(options), ErrorCode::network,
              {"127.0.0.1 port " + port, "cannot listen", "in use"});
  options.listen = {"no.such.host.invalid", 0};
  check_fails(StoreServer::start(options), ErrorCode::network,
              {"no.such.host.invalid", "no such address"});
}

TEST_CASE("a client finds a server that starts later, and gives up at its deadline if none does") {
  const StoreAddress address = start_server({})->address();  // it has gone again
  const auto nobody = connect_tcp_store({.server = address}, at_once());
  check_fails(
      nobody, ErrorCode::network,
      {"127.0.0.1 port " + std::to_string(address.port), "no connection in time", "refused"});
  on_threads(2, [&](int i) {
    if (i == 0) {
      CHECK(connect({.server = address})->set("key", "", in_time()));
    } else {
      StoreServerOptions options;
      options.listen = address;
      const auto server = start_server(options);
      auto client = connect({.server = address});
      CHECK(client->wait(std::vector<std::string>{"key"}, in_time()));
    }
  });
  TcpStoreOptions unknown;
  unknown.server = {"no.such.host.invalid", 1};
  CHECK(code_of(connect_tcp_store(unknown, at_once())) == ErrorCode::network);
}

TEST_CASE("a server that stops listening serves those who are there, and leaves its place") {
  StoreServerOptions options;
  auto server = start_server(options);
  auto client = connect({.server = server->address()});
  REQUIRE(client->set("key", "old", in_time()));
  server->stop_listening();
  CHECK(code_of(connect_tcp_store({.server = server->address()}, at_once())) == ErrorCode::network);
  options.listen = server->address();
  const auto next = start_server(options);
  auto newcomer = connect({.server = next->address()});
  CHECK(newcomer->look("key", in_time()).value() == std::nullopt);
  CHECK(client->get("key", in_time()).value() == "old");
  server->stop_listening();  // again
}

// ---- sizes --------------------------------------------------------------------------------------

TEST_CASE("the largest value passes, and the largest message") {
  TcpStores stores;
  auto client = stores.client();
  const std::string large(std::size_t{1} << 20, 'v');
  REQUIRE(client->set("key", large, in_time()));
  CHECK(client->get("key", in_time()).value() == large);
  CHECK(client->compare_and_set("key", large, large, in_time()).value() == large);
  const std::vector<std::string> keys(6000, std::string(500, 'k'));
  check_fails(client->wait(keys, in_time()), ErrorCode::misuse, {"wait", "larger than a message"});
  CHECK(client->set("key", "", in_time()));  // the connection stands
}

// ---- many ---------------------------------------------------------------------------------------

TEST_CASE("128 clients join at once and meet") {
  constexpr rlim_t each = 5;  // descriptors: of the client, of its thread, of the server
  constexpr rlim_t others = 64;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min(limit.rlim_max, 128 * each + others);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  // All 128 wherever more than 704 descriptors are allowed.
  const int clients = static_cast<int>((limit.rlim_cur - others) / each);
  TcpStores stores;
  std::atomic<int> met = 0;
  on_threads(clients, [&](int i) {
    auto client = stores.client();
    met += barrier(*client, "all", i, clients, in_time()).ok();
  });
  CHECK(met == clients);
}

// ---- the end ------------------------------------------------------------------------------------

std::ptrdiff_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder),
                       std::filesystem::directory_iterator());
}

TEST_CASE("servers and clients leave no thread and no file descriptor behind") {
  const auto run = [] {
    TcpStores stores;
    CuttingProxy proxy(stores.server->address().port);
    auto one = stores.client();
    auto two = connect({.server = {"127.0.0.1", proxy.port()}, .secret = stores.secret});
    REQUIRE(one->leave_will("log", "gone", hour, hour, in_time()));
    REQUIRE(two->set("key", "", in_time()));
    proxy.cut_all();
    CHECK_FALSE(connect_tcp_store({.server = stores.server->address()}, in_time()));  // no secret
    stores.server.reset();  // before its clients
  };
  run();  // what is made once and kept
  const auto threads = entries_of("/proc/self/task");
  const auto descriptors = entries_of("/proc/self/fd");
  for (int i = 0; i < 20; ++i) {
    run();
  }
  // The kernel may show a thread for a moment after it was joined.
  for (const TimePoint end = in_time();
       entries_of("/proc/self/task") != threads && Clock::steady().now() < end;) {
    std::this_thread::yield();
  }
  CHECK(entries_of("/proc/self/task") == threads);
  CHECK(entries_of("/proc/self/fd") == descriptors);
}

TEST_CASE("programs that a trainer starts do not get the sockets of its store") {
  TcpStores stores;
  auto client = stores.client();
  REQUIRE(client->set("key", "", in_time()));
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the folder's own descriptor is there, too
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with("socket:")) {
      const int flags = fcntl(std::stoi(entry.path().filename().string()), F_GETFD);
      CHECK((flags & FD_CLOEXEC) != 0);
      ++sockets;
    }
  }
  CHECK(sockets >= 3);  // listening, and both ends of a connection
}

TEST_CASE(
    "a client ends though its server answers nothing, and so does a server with its clients") {
  TcpStores stores;
  CuttingProxy proxy(stores.server->address().port);
  TcpStoreOptions options;
  options.server = {"127.0.0.1", proxy.port()};
  options.secret = stores.secret;
  auto held = connect(options);
  auto cut = connect(options);
  proxy.hold(true);
  held.reset();
  proxy.keep_out(true);
  proxy.hold(false);
  proxy.cut_all();
  cut.reset();
  auto left = stores.client();
  stores.server.reset();
  CHECK_FALSE(left->set("key", "", at_once()));
}

}  // namespace
}  // namespace troupe::test
