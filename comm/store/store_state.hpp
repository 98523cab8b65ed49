/// What a store holds and all it decides: keys, logs, wills, and who waits for what. No sockets, no
/// threads, no clock: callers bring requests and the time, and take the answers to their clients.
///
/// A session is a client; it outlives its connection, so that a client may come back.
///
/// [Note: once] The answer to a request that has changed something is kept until the client says
/// that it has it (`Request::settled_below`). The same request sent again gets the kept answer, and
/// one whose answer is no longer kept is ignored. Requests that change nothing are done anew; those
/// that wait end with their connection.
///
/// Limits: those of `StoreLimits`; and for each session `session_requests` that wait or whose
/// answer is kept, which may take `session_bytes`.
///
/// Thread rules: one thread at a time.
#pragma once

#include "troupe/comm/store/message.hpp"
#include "troupe/comm/store/store.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::store {

using SessionId = std::uint64_t;  ///< from 1

struct Answer {
  SessionId session = 0;
  Response response;
};

class StoreState {
 public:
  static constexpr std::size_t session_requests = 1024;
  /// What every key, entry and kept answer counts beside its own bytes.
  static constexpr std::size_t item_bytes = 64;
  /// What an entry counts beside its own bytes in the answer to `read`.
  static constexpr std::size_t entry_overhead_bytes = 4;
  static constexpr std::size_t session_bytes(const StoreLimits& limits) {
    return 4 * limits.value_bytes + (std::size_t{1} << 20);
  }
  /// A session without a connection is forgotten after so long; its requests are refused then.
  static constexpr Duration absence_limit = std::chrono::minutes{2};

  explicit StoreState(StoreLimits limits);

  // Sessions.

  /// A new client. Where there are twice as many sessions as `StoreLimits::connections`, the one
  /// that has been away longest is ended, if any is away.
  SessionId open(TimePoint now);
  /// The client of a session has come back; false: there is no such session (any more).
  bool resume(SessionId session, TimePoint now);
  /// Its connection has ended.
  void lose(SessionId session, TimePoint now);
  /// It has said goodbye: its will comes true now, unless revoked, and it cannot come back.
  void end(SessionId session);
  /// A sign of life.
  void hear(SessionId session, TimePoint now);
  std::size_t sessions() const { return sessions_.size(); }

  // Requests.

  /// The session has to be open. Answers, also to others, are added to those to be taken.
  void submit(SessionId session, Request request, TimePoint now);
  /// Ends waits whose time is up and lets wills come true.
  void advance(TimePoint now);
  /// When `advance` is to be called next, at the latest.
  std::optional<TimePoint> next_due() const;
  /// Answers in the order in which they came about.
  std::vector<Answer> take_answers() { return std::exchange(answers_, {}); }

  /// Of all keys, values and entries, as `StoreLimits::total_bytes` counts them.
  std::size_t bytes() const { return bytes_; }
  /// Requests that wait.
  std::size_t waiting() const;

 private:
  // A request that waits, and for which of its keys.
  using WaiterId = std::pair<SessionId, std::uint64_t>;
  struct Waiting {
    Request request;
    std::size_t key = 0;  ///< index of the key that it waits for
    TimePoint deadline{};
  };
  struct Log {
    std::vector<std::string> entries;
    std::set<WaiterId> waiters;
  };
  struct Will {
    std::string log;
    std::string entry;
    Duration silence{};
    Duration grace{};
  };
  struct Session {
    std::optional<TimePoint> away_since;
    TimePoint heard{};
    std::optional<TimePoint> timer;  ///< its entry in `timers_`: not later than when it is due
    std::optional<Will> will;
    std::uint64_t settled_below = 0;
    std::map<std::uint64_t, Waiting> waiting;  ///< by number
    std::map<std::uint64_t, Response> kept;    ///< by number
    std::size_t bytes = 0;                     ///< of `waiting` and `kept`
  };
  using Timer = std::tuple<TimePoint, SessionId, std::uint64_t>;  ///< number 0: the session's own

  static std::size_t request_bytes(const Request& request);
  std::optional<std::string> objection(const Session& session, const Request& request) const;
  void settle(SessionId id, Session& session, std::uint64_t below);
  Response perform(SessionId id, Session& session, const Request& request);
  Response put(const std::string& key, std::string_view value);
  Response add(const Request& request);
  Response compare_and_set(const Request& request);
  Response append(const Request& request);
  std::uint64_t add_entry(const std::string& log, std::string entry);
  bool has_room(std::size_t more, std::size_t less = 0) const;

  std::optional<Response> attempt(Waiting& waiting) const;
  Response late(const Request& request) const;
  void watch(WaiterId id, const Waiting& waiting);
  void unwatch(WaiterId id, const Waiting& waiting);
  void wake(const std::set<WaiterId>& waiters);
  void wake_key(const std::string& key);
  void wake_log(const std::string& log);
  void finish(SessionId session, std::uint64_t number, Response response);
  void drop(WaiterId id);
  void remove(WaiterId id);
  void drop_waiting(SessionId id, Session& session);

  Response leave_will(SessionId id, Session& session, const Request& request);
  static std::size_t will_bytes(const Will& will);
  void drop_will(Session& session);
  void fulfil_will(Session& session);
  static TimePoint will_due(const Session& session);
  static TimePoint due(const Session& session);
  void set_timer(SessionId id, Session& session);

  const StoreLimits limits_;
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, Log, std::less<>> logs_;
  std::map<std::string, std::set<WaiterId>, std::less<>> key_waiters_;
  std::map<SessionId, Session> sessions_;
  std::set<Timer> timers_;
  std::vector<Answer> answers_;
  SessionId last_session_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace troupe::store
