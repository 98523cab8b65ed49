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

std::size_t size_of(const Request& request) {
  std::size_t size = StoreState::item_bytes + request.value.size();
  for (const auto& key : request.keys) {
    size += key.size();
  }
  return size;
}

std::size_t size_of(const Response& response) {
  return StoreState::item_bytes + response.value.size();
}

bool waits(Operation operation) {
  return operation == Operation::get || operation == Operation::wait ||
         operation == Operation::read;
}

}  // namespace

StoreState::StoreState(StoreLimits limits) : limits_(limits) {}

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
    Waiting waiting{.request = std::move(request), .deadline = now + request.timeout};
    if (auto response = attempt(waiting)) {
      finish(id, number, std::move(*response));
    } else if (waiting.deadline <= now) {
      finish(id, number, late(waiting.request));
    } else {
      session.bytes += size_of(waiting.request);
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
  if (session.bytes + size_of(request) > session_bytes(limits_)) {
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

// ---- waiting ------------------------------------------------------------------------------------

// The answer, if it need not wait (any longer).
std::optional<Response> StoreState::attempt(Waiting& waiting) const {
  const Request& request = waiting.request;
  if (request.operation == Operation::read) {
    const auto log = logs_.find(request.keys[0]);
    if (log == logs_.end() || log->second.entries.size() <= request.from) {
      return std::nullopt;
    }
    Response response;
    std::size_t bytes = 0;
    const auto& entries = log->second.entries;
    for (auto at = static_cast<std::size_t>(request.from); at < entries.size(); ++at) {
      bytes += entries[at].size() + entry_overhead_bytes;
      if (at > request.from && bytes > limits_.value_bytes) {
        break;
      }
      response.entries.push_back(entries[at]);
    }
    return response;
  }
  const auto missing_from = [&](std::size_t from) {
    const auto begin = request.keys.begin() + static_cast<std::ptrdiff_t>(from);
    const auto missing = std::find_if(begin, request.keys.end(),
                                      [&](const auto& key) { return !values_.contains(key); });
    return static_cast<std::size_t>(missing - request.keys.begin());
  };
  waiting.key = missing_from(waiting.key);
  if (waiting.key == request.keys.size()) {
    waiting.key = missing_from(0);  // one may have been erased meanwhile
  }
  if (waiting.key < request.keys.size()) {
    return std::nullopt;
  }
  return request.operation == Operation::wait
             ? Response{}
             : Response{.value = values_.find(request.keys[0])->second};
}

Response StoreState::late(const Request& request) const {
  Response response{.status = Status::late};
  if (request.operation == Operation::wait) {
    std::ranges::copy_if(request.keys, std::back_inserter(response.entries),
                         [&](const auto& key) { return !values_.contains(key); });
  }
  return response;
}

void StoreState::watch(WaiterId id, const Waiting& waiting) {
  const std::string& key = waiting.request.keys[waiting.key];
  if (waiting.request.operation == Operation::read) {
    logs_[key].waiters.insert(id);
  } else {
    key_waiters_[key].insert(id);
  }
  timers_.insert({waiting.deadline, id.first, id.second});
}

void StoreState::unwatch(WaiterId id, const Waiting& waiting) {
  const std::string& key = waiting.request.keys[waiting.key];
  if (waiting.request.operation == Operation::read) {
    const auto log = logs_.find(key);
    log->second.waiters.erase(id);
    if (log->second.waiters.empty() && log->second.entries.empty()) {
      logs_.erase(log);
    }
  } else {
    const auto waiters = key_waiters_.find(key);
    waiters->second.erase(id);
    if (waiters->second.empty()) {
      key_waiters_.erase(waiters);
    }
  }
  timers_.erase({waiting.deadline, id.first, id.second});
}

void StoreState::wake(const std::set<WaiterId>& waiters) {
  for (const auto& id : std::set(waiters)) {  // a copy: those that are done leave it
    Waiting& waiting = sessions_.at(id.first).waiting.at(id.second);
    unwatch(id, waiting);
    if (auto response = attempt(waiting)) {
      remove(id);
      finish(id.first, id.second, std::move(*response));
    } else {
      watch(id, waiting);  // perhaps another key than before
    }
  }
}

void StoreState::wake_key(const std::string& key) {
  if (const auto waiters = key_waiters_.find(key); waiters != key_waiters_.end()) {
    wake(waiters->second);
  }
}

void StoreState::wake_log(const std::string& log) {
  wake(logs_.find(log)->second.waiters);
}

void StoreState::finish(SessionId session, std::uint64_t number, Response response) {
  response.number = number;
  answers_.push_back({session, std::move(response)});
}

void StoreState::drop(WaiterId id) {
  unwatch(id, sessions_.at(id.first).waiting.at(id.second));
  remove(id);
}

void StoreState::remove(WaiterId id) {
  Session& session = sessions_.at(id.first);
  const auto waiting = session.waiting.find(id.second);
  session.bytes -= size_of(waiting->second.request);
  session.waiting.erase(waiting);
}

void StoreState::drop_waiting(SessionId id, Session& session) {
  while (!session.waiting.empty()) {
    drop({id, session.waiting.begin()->first});
  }
}

std::size_t StoreState::waiting() const {
  std::size_t count = 0;
  for (const auto& [id, session] : sessions_) {
    count += session.waiting.size();
  }
  return count;
}

// ---- wills and time -----------------------------------------------------------------------------

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

std::size_t StoreState::will_bytes(const Will& will) {
  return item_bytes + will.log.size() + will.entry.size();
}

void StoreState::drop_will(Session& session) {
  if (session.will) {
    bytes_ -= will_bytes(*session.will);
    session.will.reset();
  }
}

void StoreState::fulfil_will(Session& session) {
  if (session.will) {
    Will will = *session.will;
    drop_will(session);
    add_entry(will.log, std::move(will.entry));
  }
}

// When the session's will comes true if nothing happens.
TimePoint StoreState::will_due(const Session& session) {
  if (!session.will) {
    return TimePoint::max();
  }
  const TimePoint silent = session.heard + session.will->silence;
  return session.away_since ? std::min(silent, *session.away_since + session.will->grace) : silent;
}

TimePoint StoreState::due(const Session& session) {
  const TimePoint forgotten =
      session.away_since ? *session.away_since + absence_limit : TimePoint::max();
  return std::min(will_due(session), forgotten);
}

// A timer may be too early (signs of life do not move it), never too late.
void StoreState::set_timer(SessionId id, Session& session) {
  if (session.timer) {
    timers_.erase({*session.timer, id, 0});
    session.timer.reset();
  }
  if (const TimePoint time = due(session); time < TimePoint::max()) {
    session.timer = time;
    timers_.insert({time, id, 0});
  }
}

void StoreState::advance(TimePoint now) {
  while (!timers_.empty() && std::get<TimePoint>(*timers_.begin()) <= now) {
    const auto [time, id, number] = *timers_.begin();
    Session& session = sessions_.at(id);
    if (number != 0) {
      Response response = late(session.waiting.at(number).request);
      drop({id, number});
      finish(id, number, std::move(response));
      continue;
    }
    if (will_due(session) <= now) {
      fulfil_will(session);
    }
    if (session.away_since && *session.away_since + absence_limit <= now) {
      end(id);
    } else {
      set_timer(id, session);
    }
  }
}

std::optional<TimePoint> StoreState::next_due() const {
  return timers_.empty() ? std::nullopt : std::optional(std::get<TimePoint>(*timers_.begin()));
}

}  // namespace troupe::store
