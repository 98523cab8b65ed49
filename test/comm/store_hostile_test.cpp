// Clients that mean no good, or do not know what they are doing, while others work.
#include "support/raw_client.hpp"
#include "support/store_bench.hpp"
#include "support/tcp_stores.hpp"
#include "troupe/comm/store/bytes.hpp"

#include <doctest/doctest.h>

#include <mutex>
#include <random>
#include <set>

namespace troupe::test {
namespace {

using std::chrono::milliseconds;
using store::FrameType;
using store::Operation;

/// A server with short limits that remembers whom it disconnected and why, and a client at work.
class Siege {
 public:
  explicit Siege(StoreLimits limits = {}) {
    StoreServerOptions options;
    options.secret = "a secret";
    options.limits = limits;
    options.handshake_limit = milliseconds{300};
    options.on_disconnect = [this](const std::string& why) {
      const std::lock_guard lock(mutex_);
      reasons_.push_back(why);
    };
    server_ = start_server(std::move(options));
    worker_ = connect({.server = server_->address(), .secret = "a secret", .name = "worker"});
  }

  std::uint16_t port() const { return server_->address().port; }
  Store& worker() { return *worker_; }
  /// The others notice nothing: calls are answered on the connection that they have.
  void check_peace() {
    const auto sum = worker_->add("work", 1, in_time());
    REQUIRE_MESSAGE(sum, sum.failure().text);
    CHECK(sum.value() == ++work_);
    CHECK(told("worker") == 0);
  }
  /// How often the server has disconnected a client for a reason that has these words.
  int told(const std::string& words) {
    // A client may see its connection closed before the server has said why.
    REQUIRE(worker_->look("", in_time()));
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::ranges::count_if(
        reasons_, [&](const auto& each) { return each.find(words) != std::string::npos; }));
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> reasons_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<Store> worker_;
  int work_ = 0;
};

TEST_CASE("who says nothing, or stops in the middle of the handshake, is disconnected") {
  Siege siege;
  RawClient silent(siege.port());
  RawClient slow(siege.port());
  slow.send(encode(store::Hello{}).substr(0, 20));
  RawClient stopped(siege.port());
  stopped.send(encode(store::Hello{}));
  CHECK(stopped.receive(in_time()));
  siege.check_peace();
  for (RawClient* each : {&silent, &slow, &stopped}) {
    CHECK(each->closed(in_time()));
  }
  CHECK(siege.told("did not prove the secret in time") == 3);
  siege.check_peace();
}

TEST_CASE("who does not have the secret is told so and disconnected") {
  Siege siege;
  RawClient stranger(siege.port());
  CHECK_FALSE(stranger.join("another secret", in_time()));
  CHECK(stranger.closed(in_time()));
  CHECK(siege.told("secret is another one") == 1);

  TcpStoreOptions options;
  options.server = {"127.0.0.1", siege.port()};
  for (const std::string& secret : {std::string("another secret"), std::string()}) {
    options.secret = secret;
    const auto refused = connect_tcp_store(options, in_time());
    check_fails(refused, ErrorCode::network,
                {"127.0.0.1", std::to_string(siege.port()), "secret is another one"});
  }
  siege.check_peace();
}

TEST_CASE("a handshake that was listened to is of no use on another connection") {
  Siege siege;
  RawClient honest(siege.port());
  REQUIRE(honest.join("a secret", in_time()));
  RawClient replay(siege.port());
  replay.send(honest.sent);
  const auto challenge = replay.receive(in_time());
  REQUIRE(challenge);
  const auto refusal = replay.receive(in_time());
  REQUIRE(refusal);
  CHECK(store::decode_refusal(*refusal).value().text == "the job's secret is another one");
  CHECK(replay.closed(in_time()));
  siege.check_peace();
}

TEST_CASE("what is no message ends the connection, before and after the handshake") {
  Siege siege;
  const std::string nothing(4, '\0');
  const std::string huge = "\xff\xff\xff\x7f";
  const std::string http = "GET / HTTP/1.1\r\nHost: store\r\n\r\n";
  const std::string no_type = std::string("\x01\0\0\0\x63", 5);
  const std::string welcome = encode(store::Welcome{});
  const std::string hello = encode(store::Hello{});
  for (const auto& bytes : {nothing, huge, http, no_type, welcome}) {
    RawClient raw(siege.port());
    raw.send(bytes);
    CHECK(raw.closed(in_time()));
  }
  std::string request = encode(of(Operation::set, "key", "value"));  // with number 0
  std::string cut = encode(adding("sum", 1));
  cut[0] = static_cast<char>(cut[0] - 1);
  for (const auto& bytes :
       {nothing, huge, http, no_type, welcome, hello, request, cut, encode(FrameType::pong)}) {
    RawClient raw(siege.port());
    REQUIRE(raw.join("a secret", in_time()));
    raw.send(bytes);
    CHECK(raw.closed(in_time()));
    siege.check_peace();
  }
  CHECK(siege.worker().look("key", in_time()).value() == std::nullopt);
  CHECK(siege.told("raw client") == 9);
}

TEST_CASE("nothing is taken from who has not proved the secret") {
  Siege siege;
  RawClient raw(siege.port());
  auto request = of(Operation::set, "key", "value");
  request.number = 1;
  raw.send(encode(request));
  CHECK(raw.closed(in_time()));
  RawClient hasty(siege.port());
  hasty.send(encode(store::Hello{}) + encode(request));
  CHECK(hasty.closed(in_time()));
  CHECK(siege.worker().look("key", in_time()).value() == std::nullopt);
}

TEST_CASE("a message larger than the store takes ends the connection before it has come") {
  Siege siege(StoreLimits{.value_bytes = 1000});
  RawClient before(siege.port());
  before.send(std::string("\x01\x04\0\0\x01", 5));  // 1025 bytes are to follow
  CHECK(before.closed(in_time()));
  RawClient after(siege.port());
  REQUIRE(after.join("a secret", in_time()));
  store::ByteWriter length;
  length.u32(static_cast<std::uint32_t>(store::frame_bytes({.value_bytes = 1000}) + 1));
  after.send(length.take());
  CHECK(after.closed(in_time()));
  CHECK(siege.told("a length that none may have") == 2);
  siege.check_peace();
}

TEST_CASE("who does not read what it asked for is disconnected, and costs a bounded amount") {
  StoreLimits limits;
  limits.value_bytes = 100'000;
  limits.outgoing_bytes = 1'000'000;
  Siege siege(limits);
  REQUIRE(siege.worker().set("large", std::string(100'000, 'v'), in_time()));
  RawClient slow(siege.port(), 4096);
  REQUIRE(slow.join("a secret", in_time()));
  auto request = of(Operation::look, "large");
  for (int i = 0; i < 1000; ++i) {
    request.number = static_cast<std::uint64_t>(i + 1);
    request.settled_below = request.number;
    if (!slow.send(encode(request))) {
      break;  // disconnected already
    }
  }
  CHECK(slow.closed(in_time()));
  CHECK(siege.told("does not take what is sent to it") == 1);
  siege.check_peace();
}

TEST_CASE("a silent or stalled client is disconnected after the limit") {
  StoreServerOptions options;
  options.idle_limit = milliseconds{700};
  std::mutex mutex;
  std::vector<std::string> reasons;
  options.on_disconnect = [&](const std::string& why) {
    const std::lock_guard lock(mutex);
    reasons.push_back(why.substr(why.rfind(": ") + 2));
  };
  auto server = start_server(std::move(options));
  RawClient silent(server->address().port);
  REQUIRE(silent.join("", in_time()));
  CHECK(silent.closed(in_time()));

  RawClient stalled(server->address().port, 4096);
  REQUIRE(stalled.join("", in_time()));
  auto set = of(Operation::set, "large", std::string(1'000'000, 'v'));
  set.number = 1;
  stalled.send(encode(set));
  auto look = of(Operation::look, "large");
  for (look.number = 2; look.number < 14; ++look.number) {
    stalled.send(encode(look));
  }
  // It gives signs of life, but takes nothing.
  const TimePoint end = in_time();
  while (stalled.send(encode(FrameType::ping)) && Clock::steady().now() < end) {
    std::this_thread::sleep_for(milliseconds{20});
  }
  server.reset();
  CHECK(reasons ==
        std::vector<std::string>{"it gave no sign of life", "it does not take what is sent to it"});
}

TEST_CASE("connections are bounded: who has not proved the secret makes room") {
  Siege siege(StoreLimits{.connections = 8});
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(std::make_unique<RawClient>(siege.port()));
  }
  auto client = connect({.server = {"127.0.0.1", siege.port()}, .secret = "a secret"});
  CHECK(client->set("key", "", in_time()));
  CHECK(siege.told("more connections than the store takes") >= 33);
  siege.check_peace();
  silent.clear();

  // Those who have proved it stay; more are not let in.
  std::vector<std::unique_ptr<RawClient>> proved;
  for (int i = 0; i < 6; ++i) {
    proved.push_back(std::make_unique<RawClient>(siege.port()));
    REQUIRE(proved.back()->join("a secret", in_time()));
  }
  RawClient ninth(siege.port());
  CHECK(ninth.closed(in_time()));
  siege.check_peace();
  CHECK(client->set("key", "", in_time()));
}

TEST_CASE("a session is taken over by its last connection") {
  Siege siege;
  RawClient first(siege.port());
  store::ClientHandshake handshake("a secret", 0, 0, "twice");
  first.send(handshake.hello());
  first.send(handshake.challenge(first.receive(in_time()).value()).value());
  const auto welcome = handshake.welcome(first.receive(in_time()).value()).value();
  RawClient second(siege.port());
  store::ClientHandshake again("a secret", welcome.instance, welcome.session, "twice");
  second.send(again.hello());
  second.send(again.challenge(second.receive(in_time()).value()).value());
  CHECK(again.welcome(second.receive(in_time()).value()).value().session == welcome.session);
  CHECK(first.closed(in_time()));
  second.send(encode(FrameType::ping));
  CHECK(store::type_of(second.receive(in_time()).value()) == FrameType::pong);

  for (const auto& [instance, session] : {std::pair{welcome.instance + 1, welcome.session},
                                          {welcome.instance, welcome.session + 9}}) {
    RawClient wrong(siege.port());
    store::ClientHandshake other("a secret", instance, session, "wrong");
    wrong.send(other.hello());
    wrong.send(other.challenge(wrong.receive(in_time()).value()).value());
    const auto refusal = store::decode_refusal(wrong.receive(in_time()).value());
    REQUIRE(refusal);
    CHECK(refusal->text.find("does not know this client") != std::string::npos);
  }
}

TEST_CASE("random bytes of many clients disturb nobody") {
  Siege siege;
  on_threads(4, [&](int i) {
    std::mt19937 random(static_cast<unsigned>(i));
    for (int round = 0; round < 25; ++round) {
      RawClient raw(siege.port());
      if (round % 2 == 0) {
        raw.join("a secret", in_time());
      }
      std::string bytes;
      while (bytes.size() < 300) {
        store::ByteWriter out;
        std::string body(1 + random() % 40, '\0');
        for (auto& each : body) {
          each = static_cast<char>(random() % 12);
        }
        body[0] = static_cast<char>(round % 3 == 0 ? body[0] : 6);
        out.bytes(body);
        bytes += out.take();
      }
      raw.send(bytes);
    }
  });
  for (int i = 0; i < 10; ++i) {
    siege.check_peace();
  }
}

}  // namespace
}  // namespace troupe::test
