#include "support/store_bench.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace troupe::test {
namespace {

using store::Operation;
using store::Request;
using store::Response;
using store::Status;

using std::chrono::milliseconds;
using Entries = std::vector<std::string>;

// ---- once ---------------------------------------------------------------------------------------

TEST_CASE("a change that is sent again is answered again and done once") {
  struct Row {
    Request request;
    Request look;
    Response after;
  };
  const Row rows[] = {
      {of(Operation::set, "key", "new"), of(Operation::look, "key"), {.value = "other"}},
      {adding("sum", 5), of(Operation::look, "sum"), {.value = "5"}},
      {comparing("word", "old", "new"), of(Operation::look, "word"), {.value = "old"}},
      {of(Operation::erase, "there"), of(Operation::look, "there"), {.value = "back"}},
      {of(Operation::append, "log", "entry"), reading("log", 0), {.entries = {"entry"}}},
  };
  for (const Row& row : rows) {
    CAPTURE(to_string(row.request.operation));
    StoreBench bench;
    const auto one = bench.open();
    const auto two = bench.open();
    bench.ask(two, of(Operation::set, "word", "old"));
    bench.ask(two, of(Operation::set, "there", ""));
    const Response first = bench.ask(one, row.request);
    // Another client changes things meanwhile, so that doing it again would show.
    bench.ask(two, of(Operation::set, "key", "other"));
    bench.ask(two, of(Operation::set, "word", "old"));
    bench.ask(two, of(Operation::set, "there", "back"));
    for (int again = 0; again < 3; ++again) {
      bench.state.lose(one, bench.now);
      REQUIRE(bench.state.resume(one, bench.now));
      const auto answer = bench.ask_again(one, row.request, first.number);
      REQUIRE(answer);
      CHECK(*answer == first);
    }
    Response seen = bench.ask(two, row.look);
    seen.number = 0;
    CHECK(seen == row.after);
  }
}

TEST_CASE("a change whose answer is settled is never done again, nor answered") {
  StoreBench bench;
  const auto client = bench.open();
  const Response first = bench.ask(client, adding("sum", 5));
  Request next = of(Operation::look, "sum");
  next.settled_below = first.number + 1;
  CHECK(bench.ask(client, next).value == "5");
  CHECK_FALSE(bench.ask_again(client, adding("sum", 5), first.number));
  CHECK(bench.ask(client, of(Operation::look, "sum")).value == "5");
}

TEST_CASE("what changes nothing is done anew when it comes again") {
  StoreBench bench;
  const auto client = bench.open();
  const Response first = bench.ask(client, of(Operation::look, "key"));
  CHECK(first.status == Status::missing);
  bench.ask(client, of(Operation::set, "key", "value"));
  CHECK(bench.ask_again(client, of(Operation::look, "key"), first.number)->value == "value");
}

TEST_CASE("any order of changes, repetitions and lost connections adds up") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](unsigned below) { return static_cast<unsigned>(random() % below); };
    StoreBench bench;
    constexpr std::size_t clients = 3;
    std::vector<store::SessionId> sessions;
    // The requests of each client that it has no answer to, and what it sent with them.
    std::vector<std::map<std::uint64_t, Request>> open(clients);
    for (std::size_t i = 0; i < clients; ++i) {
      sessions.push_back(bench.open());
    }
    std::int64_t sum = 0;
    Entries appended;
    for (int step = 0; step < 60; ++step) {
      const std::size_t who = draw(clients);
      auto& own = open[who];
      const unsigned what = draw(10);
      if (what < 6) {
        const auto amount = static_cast<std::int64_t>(draw(9));
        const std::string entry = std::to_string(seed) + "/" + std::to_string(step);
        Request request = what < 3 ? adding("sum", amount) : of(Operation::append, "log", entry);
        sum += what < 3 ? amount : 0;
        if (what >= 3) {
          appended.push_back(entry);
        }
        request.number = bench.next_number(sessions[who]);
        request.settled_below = own.empty() ? request.number : own.begin()->first;
        own.emplace(request.number, request);
        bench.submit(sessions[who], request);
      } else if (what < 8 && !own.empty()) {
        const auto answered = std::next(own.begin(), draw(static_cast<unsigned>(own.size())));
        own.erase(answered);  // its answer has come
      } else {
        bench.state.lose(sessions[who], bench.now);
        REQUIRE(bench.state.resume(sessions[who], bench.now));
        for (auto& [number, request] : own) {
          request.settled_below = own.begin()->first;
          bench.submit(sessions[who], request);
        }
      }
    }
    CAPTURE(seed);
    CHECK(bench.ask(sessions[0], adding("sum", 0)).count == sum);
    if (!appended.empty()) {
      CHECK(bench.ask(sessions[0], reading("log", 0)).entries == appended);
    }
  }
}

// ---- waiting ------------------------------------------------------------------------------------

TEST_CASE("a wait is over at its timeout, and not before") {
  StoreBench bench;
  const auto client = bench.open();
  for (Request request : {of(Operation::get, "key"), waiting_for({"key"}), reading("log", 0)}) {
    request.timeout = milliseconds{100};
    const auto number = bench.submit(client, request);
    CHECK(bench.state.next_due() == bench.now + milliseconds{100});
    bench.pass(milliseconds{99});
    CHECK_FALSE(bench.answer(client, number));
    bench.pass(milliseconds{1});
    CHECK(bench.answer(client, number)->status == Status::late);
    CHECK(bench.state.waiting() == 0);
    CHECK_FALSE(bench.state.next_due());
  }
}

TEST_CASE("a wait that is late says which keys it missed") {
  StoreBench bench;
  const auto client = bench.open();
  bench.ask(client, of(Operation::set, "b", ""));
  const Response late = bench.ask(client, waiting_for({"a", "b", "c"}));
  CHECK(late.status == Status::late);
  CHECK(late.entries == Entries{"a", "c"});
}

TEST_CASE("a wait for several keys ends when all are there at one time") {
  StoreBench bench;
  const auto client = bench.open();
  Request request = waiting_for({"a", "b", "c"});
  request.timeout = milliseconds{100};
  const auto number = bench.submit(client, request);
  bench.ask(client, of(Operation::set, "b", ""));
  bench.ask(client, of(Operation::set, "a", ""));
  bench.ask(client, of(Operation::erase, "a"));
  bench.ask(client, of(Operation::set, "c", ""));
  CHECK_FALSE(bench.answer(client, number));
  bench.ask(client, of(Operation::set, "a", ""));
  CHECK(bench.answer(client, number)->status == Status::ok);
  CHECK(bench.state.waiting() == 0);
}

TEST_CASE("a wait ends with its connection, and is taken up on the next") {
  StoreBench bench;
  const auto client = bench.open();
  Request request = of(Operation::get, "key");
  request.timeout = milliseconds{100};
  const auto number = bench.submit(client, request);
  CHECK(bench.state.waiting() == 1);
  bench.state.lose(client, bench.now);
  CHECK(bench.state.waiting() == 0);
  REQUIRE(bench.state.resume(client, bench.now));
  request.number = number;
  bench.submit(client, request);
  CHECK(bench.state.waiting() == 1);
  bench.submit(client, request);  // twice
  CHECK(bench.state.waiting() == 1);
  bench.ask(client, of(Operation::set, "key", "value"));
  CHECK(bench.answers_to(client, number) == 1);
}

TEST_CASE("a wait that the client no longer wants is dropped") {
  StoreBench bench;
  const auto client = bench.open();
  Request request = of(Operation::get, "key");
  request.timeout = milliseconds{100};
  const auto number = bench.submit(client, request);
  Request next = of(Operation::set, "key", "");
  next.settled_below = number + 1;
  bench.ask(client, next);
  CHECK(bench.state.waiting() == 0);
  CHECK(bench.answers_to(client, number) == 0);
}

// ---- wills --------------------------------------------------------------------------------------

TEST_CASE("a will comes true after its silence, counted from the last sign of life") {
  StoreBench bench;
  const auto client = bench.open();
  bench.ask(client, leaving("log", "gone", milliseconds{100}, milliseconds{500}));
  for (int i = 0; i < 5; ++i) {
    bench.pass(milliseconds{99});
    bench.state.hear(client, bench.now);
  }
  bench.pass(milliseconds{99});
  CHECK(bench.log_size("log") == 0);
  bench.pass(milliseconds{1});
  CHECK(bench.log_size("log") == 1);
  bench.pass(milliseconds{1000});
  bench.state.end(client);
  CHECK(bench.log_size("log") == 1);
}

TEST_CASE("a request is a sign of life") {
  StoreBench bench;
  const auto client = bench.open();
  bench.ask(client, leaving("log", "gone", milliseconds{100}, milliseconds{500}));
  bench.pass(milliseconds{60});
  bench.ask(client, of(Operation::look, "key"));
  bench.pass(milliseconds{60});
  CHECK(bench.log_size("log") == 0);
}

TEST_CASE("a will comes true when its client stays away longer than its grace") {
  StoreBench bench;
  const auto client = bench.open();
  bench.ask(client, leaving("log", "gone", milliseconds{1000}, milliseconds{50}));
  bench.state.lose(client, bench.now);
  bench.pass(milliseconds{49});
  REQUIRE(bench.state.resume(client, bench.now));
  bench.pass(milliseconds{60});
  CHECK(bench.log_size("log") == 0);
  bench.state.lose(client, bench.now);
  bench.pass(milliseconds{50});
  CHECK(bench.log_size("log") == 1);
  CHECK(bench.state.resume(client, bench.now));  // it may come back, but the will is spent
  bench.state.end(client);
  CHECK(bench.log_size("log") == 1);
}

TEST_CASE("a will that is revoked or replaced does not come true") {
  StoreBench bench;
  const auto client = bench.open();
  bench.ask(client, leaving("old", "gone", milliseconds{100}, milliseconds{100}));
  bench.ask(client, leaving("new", "gone", milliseconds{300}, milliseconds{100}));
  bench.pass(milliseconds{299});
  CHECK(bench.log_size("old") == 0);
  CHECK(bench.log_size("new") == 0);
  bench.ask(client, {.operation = Operation::revoke_will});
  bench.pass(milliseconds{1000});
  bench.state.end(client);
  CHECK(bench.log_size("old") == 0);
  CHECK(bench.log_size("new") == 0);
}

TEST_CASE("a full store has room for the wills that it took") {
  StoreBench bench({.total_bytes = 290});
  const auto client = bench.open();
  const auto other = bench.open();
  CHECK(bench.ask(client, leaving("log", "gone", milliseconds{100}, milliseconds{100})).status ==
        Status::ok);
  while (bench.ask(other, of(Operation::append, "filler", "12345678")).status == Status::ok) {
  }
  CHECK(bench.ask(other, leaving("log", "gone", milliseconds{100}, milliseconds{100})).status ==
        Status::refused);
  bench.state.end(client);
  CHECK(bench.ask(other, reading("log", 0)).entries == Entries{"gone"});
  CHECK(bench.state.bytes() <= 290);
}

TEST_CASE("a will wakes those who read its log") {
  StoreBench bench;
  const auto client = bench.open();
  const auto reader = bench.open();
  bench.ask(client, leaving("log", "gone", milliseconds{100}, milliseconds{10}));
  Request request = reading("log", 0);
  request.timeout = milliseconds{1000};
  const auto number = bench.submit(reader, request);
  bench.state.lose(client, bench.now);
  bench.pass(milliseconds{10});
  CHECK(bench.answer(reader, number)->entries == Entries{"gone"});
}

// ---- sessions and limits ------------------------------------------------------------------------

TEST_CASE("a session whose client stays away is forgotten") {
  StoreBench bench;
  const auto client = bench.open();
  const auto other = bench.open();
  bench.state.lose(client, bench.now);
  bench.pass(store::StoreState::absence_limit - milliseconds{1});
  CHECK(bench.state.sessions() == 2);
  bench.pass(milliseconds{1});
  CHECK(bench.state.sessions() == 1);
  CHECK_FALSE(bench.state.resume(client, bench.now));
  CHECK(bench.state.resume(other, bench.now));
}

TEST_CASE("where there are too many sessions the one away longest goes, and its will comes true") {
  StoreBench bench({.connections = 2});
  std::vector<store::SessionId> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(bench.open());
    const auto name = std::to_string(i);
    bench.ask(clients.back(), leaving("log", name, milliseconds{100000}, milliseconds{90000}));
  }
  bench.state.lose(clients[2], bench.now);
  bench.pass(milliseconds{10});
  bench.state.lose(clients[1], bench.now);
  const auto fifth = bench.open();
  CHECK(bench.state.sessions() == 4);
  CHECK_FALSE(bench.state.resume(clients[2], bench.now));
  CHECK(bench.state.resume(clients[1], bench.now));
  CHECK(bench.ask(fifth, reading("log", 0)).entries == Entries{"2"});
}

TEST_CASE("a client has a bounded number of requests under way") {
  StoreBench bench;
  const auto client = bench.open();
  const auto other = bench.open();
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < store::StoreState::session_requests; ++i) {
    Request request = i % 2 == 0 ? adding("sum", 1) : of(Operation::get, "never");
    request.timeout = milliseconds{100};
    last = bench.submit(client, request);
  }
  const Response refused = bench.ask(client, adding("sum", 1));
  CHECK(refused.status == Status::refused);
  CHECK(refused.value.find("1024 requests") != std::string::npos);
  CHECK(bench.ask(other, adding("sum", 0)).count == 512);
  Request settling = adding("sum", 1);
  settling.settled_below = last + 2;
  settling.number = bench.next_number(client);
  bench.submit(client, settling);
  CHECK(bench.answer(client, settling.number)->count == 513);
  CHECK(bench.state.waiting() == 0);
}

TEST_CASE("what a client's requests under way take is bounded") {
  StoreBench bench({.value_bytes = 1 << 20});
  const auto client = bench.open();
  const std::string large(1 << 20, 'v');
  int kept = 0;
  while (true) {
    const auto expected = kept == 0 ? std::nullopt : std::optional<std::string>(large);
    Request request = of(Operation::compare_and_set, "key", large);
    request.expected = expected;
    if (bench.ask(client, request).status != Status::ok) {
      break;
    }
    ++kept;
  }
  CHECK(kept == 4);
}

TEST_CASE("what is erased and forgotten takes no room") {
  StoreBench bench;
  const auto client = bench.open();
  const auto before = bench.state.bytes();
  for (int i = 0; i < 10; ++i) {
    bench.ask(client, of(Operation::set, "key" + std::to_string(i), std::string(100, 'v')));
    bench.ask(client, of(Operation::set, "key" + std::to_string(i), std::string(10, 'v')));
  }
  CHECK(bench.state.bytes() == before + 10 * (64 + 4 + 10));
  bench.ask(client, leaving("log", "gone", milliseconds{100}, milliseconds{100}));
  bench.ask(client, {.operation = Operation::revoke_will});
  for (int i = 0; i < 10; ++i) {
    bench.ask(client, of(Operation::erase, "key" + std::to_string(i)));
  }
  CHECK(bench.state.bytes() == before);
}

}  // namespace
}  // namespace troupe::test
