/// A `StoreState` with a clock that is set by hand, and short ways to ask it.
#pragma once

#include "troupe/comm/store/store_state.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::test {

inline store::Request of(store::Operation operation, std::string key, std::string value = {}) {
  store::Request request;
  request.operation = operation;
  request.keys.push_back(std::move(key));
  request.value = std::move(value);
  return request;
}

inline store::Request adding(std::string key, std::int64_t amount) {
  store::Request request = of(store::Operation::add, std::move(key));
  request.amount = amount;
  return request;
}

inline store::Request comparing(std::string key, std::string expected, std::string desired) {
  store::Request request =
      of(store::Operation::compare_and_set, std::move(key), std::move(desired));
  request.expected = std::move(expected);
  return request;
}

inline store::Request waiting_for(std::vector<std::string> keys) {
  store::Request request;
  request.operation = store::Operation::wait;
  request.keys = std::move(keys);
  return request;
}

inline store::Request reading(std::string log, std::uint64_t from) {
  store::Request request = of(store::Operation::read, std::move(log));
  request.from = from;
  return request;
}

inline store::Request leaving(std::string log,
                              std::string entry,
                              std::chrono::milliseconds silence,
                              std::chrono::milliseconds grace) {
  store::Request request = of(store::Operation::leave_will, std::move(log), std::move(entry));
  request.silence = silence;
  request.grace = grace;
  return request;
}

struct StoreBench {
  explicit StoreBench(StoreLimits limits = {}) : state(limits) {}

  store::SessionId open() { return state.open(now); }
  std::uint64_t next_number(store::SessionId session) { return ++numbers[session]; }

  /// Gives the request its number, unless it has one. Returns it.
  std::uint64_t submit(store::SessionId session, store::Request request) {
    if (request.number == 0) {
      request.number = next_number(session);
    }
    const auto number = request.number;
    state.submit(session, std::move(request), now);
    collect();
    return number;
  }
  /// The answer to a request that need not wait.
  store::Response ask(store::SessionId session, const store::Request& request) {
    const auto number = submit(session, request);
    const auto found = answer(session, number);
    REQUIRE(found);
    return *found;
  }
  std::optional<store::Response> ask_again(store::SessionId session,
                                           store::Request request,
                                           std::uint64_t number) {
    request.number = number;
    answers.erase({session, number});
    submit(session, std::move(request));
    return answer(session, number);
  }

  void pass(Duration duration) {
    now += duration;
    state.advance(now);
    collect();
  }
  void collect() {
    for (auto& [session, response] : state.take_answers()) {
      answers[{session, response.number}].push_back(response);
    }
  }
  std::size_t answers_to(store::SessionId session, std::uint64_t number) {
    collect();
    const auto found = answers.find({session, number});
    return found == answers.end() ? 0 : found->second.size();
  }
  /// The last one.
  std::optional<store::Response> answer(store::SessionId session, std::uint64_t number) {
    return answers_to(session, number) == 0 ? std::nullopt
                                            : std::optional(answers[{session, number}].back());
  }

  /// Up to what one message takes.
  std::size_t log_size(const std::string& log) {
    const auto session = open();
    const auto size = ask(session, reading(log, 0)).entries.size();
    state.end(session);
    return size;
  }

  store::StoreState state;
  TimePoint now = TimePoint{} + std::chrono::hours{1};
  std::map<store::SessionId, std::uint64_t> numbers;
  std::map<std::pair<store::SessionId, std::uint64_t>, std::vector<store::Response>> answers;
};

}  // namespace troupe::test
