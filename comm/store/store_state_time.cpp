// Of the store's state: requests that wait, wills, and what becomes of them as time passes.
#include "troupe/comm/store/store_state.hpp"

#include <algorithm>
#include <iterator>

namespace troupe::store {

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
  session.bytes -= request_bytes(waiting->second.request);
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
