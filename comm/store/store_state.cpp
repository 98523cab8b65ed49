#include "troupe/comm/store/store_state.hpp"

#include <algorithm>
#include <charconv>

namespace troupe::store {
namespace {

Response refusal(std::string text) {
  return {.status = Status::refused, .value = std::move(text)};
}

Response full() {
  return refusal("the store is full");
}

std::size_t size_of(const Response& response) {
  return StoreState::item_bytes + response.value.size();
}

}  // namespace

StoreState::StoreState(StoreLimits limits) : limits_(limits) {}

std::size_t StoreState::request_bytes(const Request& request) {
  std::size_t size = item_bytes + request.value.size();
  for (const auto& key : request.keys) {
    size += key.size();
  }
  return size;
}

// ---- sessions -----------------------------------------------------------------------------------

SessionId StoreState::open(TimePoint now) {
  if (sessions_.size() >= 2 * limits_.connections) {
    const auto longest = std::ranges::min_element(sessions_, {}, [](const auto& each) {
      return each.second.away_since.value_or(TimePoint::max());
    });
    if (longest != sessions_.end() && longest->second.away_since) {
      end(longest->first);
    }
  }
  sessions_[++last_session_].heard = now;
  return last_session_;
}

bool StoreState::resume(SessionId session, TimePoint now) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return false;
  }
  drop_waiting(session, found->second);  // of a connection that the client has given up
  found->second.away_since.reset();
  found->second.heard = now;
  return true;
}

void StoreState::lose(SessionId session, TimePoint now) {
  Session& own = sessions_.at(session);
  drop_waiting(session, own);
  own.away_since = now;
  set_timer(session, own);
}

void StoreState::end(SessionId session) {
  Session& own = sessions_.at(session);
  drop_waiting(session, own);
  if (own.timer) {
    timers_.erase({*own.timer, session, 0});
  }
  fulfil_will(own);
  sessions_.erase(session);
}

void StoreState::hear(SessionId session, TimePoint now) {
  sessions_.at(session).heard = now;
}

// ---- requests -----------------------------------------------------------------------------------

void StoreState::submit(SessionId id, Request request, TimePoint now) {
  Session& session = sessions_.at(id);
  const auto number = request.number;
  session.heard = now;
  settle(id, session, request.settled_below);
  if (number < session.settled_below || session.waiting.contains(number)) {
    return;
  }
  if (const auto kept = session.kept.find(number); kept != session.kept.end()) {
    answers_.push_back({id, kept->second});
    return;
  }
  if (auto text = objection(session, request)) {
    finish(id, number, refusal(std::move(*text)));
    return;
  }
  if (waits(request.operation)) {
    const TimePoint deadline = now + request.timeout;
    Waiting waiting{.request = std::move(request), .deadline = deadline};
    if (auto response = attempt(waiting)) {
      finish(id, number, std::move(*response));
    } else if (waiting.deadline <= now) {
      finish(id, number, late(waiting.request));
    } else {
      session.bytes += request_bytes(waiting.request);
      watch({id, number}, waiting);
      session.waiting.emplace(number, std::move(waiting));
    }
    return;
  }
  Response response = perform(id, session, request);
  response.number = number;
  if (changes_something(request.operation)) {
    session.bytes += size_of(response);
    session.kept.emplace(number, response);
  }
  answers_.push_back({id, std::move(response)});
}

// Why a request is not even tried.
std::optional<std::string> StoreState::objection(const Session& session,
                                                 const Request& request) const {
  const bool many = request.operation == Operation::wait;
  const bool none = request.operation == Operation::revoke_will;
  if (!many && request.keys.size() != (none ? 0U : 1U)) {
    return std::to_string(request.keys.size()) + " keys";
  }
  if (auto text = beyond_limits(request, limits_)) {
    return text;
  }
  if (session.waiting.size() + session.kept.size() >= session_requests) {
    return "the client has more than " + std::to_string(session_requests) + " requests under way";
  }
  if (session.bytes + request_bytes(request) > session_bytes(limits_)) {
    return "the client's requests under way have more than " +
           std::to_string(session_bytes(limits_)) + " bytes";
  }
  return std::nullopt;
}

// The client wants no answers below that number any more.
void StoreState::settle(SessionId id, Session& session, std::uint64_t below) {
  if (below <= session.settled_below) {
    return;
  }
  session.settled_below = below;
  while (!session.kept.empty() && session.kept.begin()->first < below) {
    session.bytes -= size_of(session.kept.begin()->second);
    session.kept.erase(session.kept.begin());
  }
  while (!session.waiting.empty() && session.waiting.begin()->first < below) {
    drop({id, session.waiting.begin()->first});
  }
}

Response StoreState::perform(SessionId id, Session& session, const Request& request) {
  switch (request.operation) {
    case Operation::set:
      return put(request.keys[0], request.value);
    case Operation::look:
      if (const auto found = values_.find(request.keys[0]); found != values_.end()) {
        return {.value = found->second};
      }
      return {.status = Status::missing};
    case Operation::add:
      return add(request);
    case Operation::compare_and_set:
      return compare_and_set(request);
    case Operation::erase:
      if (const auto found = values_.find(request.keys[0]); found != values_.end()) {
        bytes_ -= item_bytes + found->first.size() + found->second.size();
        values_.erase(found);
        return {};
      }
      return {.status = Status::missing};
    case Operation::append:
      return append(request);
    case Operation::leave_will:
      return leave_will(id, session, request);
    case Operation::revoke_will:
      drop_will(session);
      return {};
    case Operation::get:  // these wait
    case Operation::wait:
    case Operation::read:
      break;
  }
  return {};
}

Response StoreState::put(const std::string& key, std::string_view value) {
  const auto found = values_.find(key);
  const bool there = found != values_.end();
  const std::size_t more = value.size() + (there ? 0 : item_bytes + key.size());
  const std::size_t less = there ? found->second.size() : 0;
  if (!has_room(more, less)) {
    return full();
  }
  bytes_ += more - less;
  if (there) {
    found->second = value;
  } else {
    values_.emplace(key, value);
    wake_key(key);
  }
  return {};
}

Response StoreState::add(const Request& request) {
  const auto found = values_.find(request.keys[0]);
  std::int64_t sum = 0;
  if (found != values_.end()) {
    const auto& text = found->second;
    const auto* end = text.data() + text.size();
    if (const auto read = std::from_chars(text.data(), end, sum);
        read.ec != std::errc() || read.ptr != end) {
      return refusal("the value of key " + quoted(request.keys[0]) + " is no decimal number");
    }
  }
  if (__builtin_add_overflow(sum, request.amount, &sum)) {
    return refusal("the sum at key " + quoted(request.keys[0]) + " leaves 64 bits");
  }
  Response response = put(request.keys[0], std::to_string(sum));
  response.count = response.status == Status::ok ? sum : 0;
  return response;
}

Response StoreState::compare_and_set(const Request& request) {
  const auto found = values_.find(request.keys[0]);
  const bool there = found != values_.end();
  const bool equal =
      there ? request.expected && *request.expected == found->second : !request.expected;
  if (!equal) {
    return there ? Response{.value = found->second} : Response{.status = Status::missing};
  }
  Response response = put(request.keys[0], request.value);
  if (response.status == Status::ok) {
    response.value = request.value;
  }
  return response;
}

Response StoreState::append(const Request& request) {
  const auto& log = request.keys[0];
  if (!has_room(item_bytes + log.size() + request.value.size())) {
    return full();
  }
  return {.count = static_cast<std::int64_t>(add_entry(log, request.value))};
}

// A name counts with every entry, which makes the sum simple, and is little.
std::uint64_t StoreState::add_entry(const std::string& log, std::string entry) {
  bytes_ += item_bytes + log.size() + entry.size();
  auto& entries = logs_[log].entries;
  entries.push_back(std::move(entry));
  const auto position = entries.size() - 1;
  wake_log(log);
  return position;
}

bool StoreState::has_room(std::size_t more, std::size_t less) const {
  return bytes_ + more <= limits_.total_bytes + less;
}

// Room for the entry is taken now: a store that is full has to keep its word, too.
Response StoreState::leave_will(SessionId id, Session& session, const Request& request) {
  if (request.silence <= request.silence.zero()) {
    return refusal("a will needs a silence of at least a millisecond");
  }
  const Will will{request.keys[0], request.value, request.silence, request.grace};
  const std::size_t less = session.will ? will_bytes(*session.will) : 0;
  if (!has_room(will_bytes(will), less)) {
    return full();
  }
  bytes_ += will_bytes(will) - less;
  session.will = will;
  set_timer(id, session);
  return {};
}

}  // namespace troupe::store
