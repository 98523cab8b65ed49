#include "troupe/comm/store/tcp_store.hpp"

#include "troupe/comm/store/client_connection.hpp"
#include "troupe/comm/store/store_calls.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace troupe {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using store::ClientConnection;
using store::Operation;
using store::Request;
using store::Response;

using std::chrono::milliseconds;

/// A call whose keys may be long in coming waits so much beyond its deadline for the store to say
/// which are missing.
constexpr Duration answer_slack = milliseconds{1000};
/// How long a client that ends waits for the store to hear it.
constexpr Duration goodbye_limit = milliseconds{500};
/// Between attempts to connect: doubles from the first to the last.
constexpr Duration first_pause = milliseconds{10};
constexpr Duration last_pause = milliseconds{500};
/// A sign of life is given so often, however long the silence may be that is allowed.
constexpr Duration last_ping = milliseconds{2500};
/// However little of the limit for a new connection is left, an attempt may take so long.
constexpr Duration shortest_attempt = milliseconds{50};

// Not less than the request's frame has.
std::size_t frame_bytes_at_most(const Request& request) {
  std::size_t bytes = 128 + request.value.size() + request.expected.value_or("").size();
  for (const auto& key : request.keys) {
    bytes += 4 + key.size();
  }
  return bytes;
}

class TcpStore final : public store::StoreCalls, public ClientConnection::Host {
 public:
  explicit TcpStore(TcpStoreOptions options)
      : options_(std::move(options)), resolver_(io_.context()), timer_(io_.context()) {
    asio::post(io_.context(), [this] { resolve(); });
  }

  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;
  ~TcpStore() override {
    close();
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, Clock::steady().now() + goodbye_limit,
                          [&] { return connection_ended_; });
    }
    io_.stop();
    if (connection_) {
      connection_->close();
    }
  }

  /// Until the store has been reached; why not, if not in time.
  Result<void> wait_open(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return limits_ || over_; });
    if (over_) {
      return Failure{.code = ErrorCode::network, .text = place() + ": " + *over_};
    }
    if (!limits_) {
      return Failure{.code = ErrorCode::network,
                     .text = place() + ": no connection in time: " + trouble_};
    }
    return {};
  }

  void close() override { end("the store was closed", true); }

 private:
  // A call that waits for its answer, on its thread's stack.
  struct Call {
    const Request& request;
    const TimePoint deadline;
    std::optional<Response> response{};
    std::condition_variable done{};
  };

  std::string place() const override {
    return "the store at " + options_.server.host + " port " + std::to_string(options_.server.port);
  }

  // ---- any thread

  Result<Response> call(Request request, TimePoint deadline) override {
    std::unique_lock lock(mutex_);
    if (over_) {
      return failure(ErrorCode::network, request, *over_);
    }
    // Nobody has the client before it has been welcomed, which told the limits.
    if (auto text = store::beyond_limits(request, limits_.value_or(StoreLimits{}))) {
      return failure(ErrorCode::misuse, request, *text);
    }
    if (frame_bytes_at_most(request) > frame_bytes_) {
      return failure(
          ErrorCode::misuse, request,
          "the call is larger than a message of " + std::to_string(frame_bytes_) + " bytes");
    }
    request.number = ++last_number_;
    const auto operation = request.operation;
    if (operation == Operation::leave_will) {
      will_silence_ = request.silence;
    } else if (operation == Operation::revoke_will) {
      will_silence_.reset();
    }
    Call own{request, deadline};
    calls_.emplace(request.number, &own);
    asio::post(io_.context(), [this] { send_calls(); });

    const auto answered = [&] { return own.response || over_; };
    if (!own.done.wait_until(lock, deadline, answered) && open_ && store::waits(operation)) {
      own.done.wait_until(lock, deadline + answer_slack, answered);
    }
    calls_.erase(request.number);
    if (own.response) {
      return std::move(*own.response);
    }
    if (over_) {
      return failure(ErrorCode::network, request, *over_);
    }
    return failure(ErrorCode::timeout, request,
                   open_ ? "the store did not answer in time" : "no connection: " + trouble_);
  }

  // The first reason stands.
  void end(const std::string& why, bool goodbye) {
    const std::lock_guard lock(mutex_);
    if (over_) {
      return;
    }
    over_ = why;
    changed_.notify_all();
    for (const auto& [number, call] : calls_) {
      call->done.notify_all();
    }
    asio::post(io_.context(), [this, goodbye] {
      timer_.cancel();
      resolver_.cancel();
      if (connection_ && goodbye) {
        connection_->say_goodbye();
      } else {
        drop_connection();
      }
    });
  }

  // ---- the store's thread

  void resolve() {
    error_code error;
    const auto address = asio::ip::make_address(options_.server.host, error);
    if (!error) {
      endpoints_ = {tcp::endpoint(address, options_.server.port)};
      connect();
      return;
    }
    resolver_.async_resolve(options_.server.host, std::to_string(options_.server.port),
                            [this](const error_code& failed, const auto& found) {
                              if (failed) {
                                try_again(failed.message());
                                return;
                              }
                              endpoints_.assign(found.begin(), found.end());
                              connect();
                            });
  }

  void connect() {
    if (over()) {
      drop_connection();
      return;
    }
    Duration attempt_limit = options_.silence_limit;
    if (lost_at_) {
      const Duration left = *lost_at_ + options_.reconnect_limit - Clock::steady().now();
      attempt_limit = std::clamp<Duration>(left, shortest_attempt, attempt_limit);
    }
    connection_ = std::make_shared<ClientConnection>(
        io_, *this, store::ClientHandshake(options_.secret, instance_, session_, options_.name),
        attempt_limit, options_.silence_limit);
    connection_->start(endpoints_);
  }

  void opened(const store::Welcome& welcome) override {
    instance_ = welcome.instance;
    session_ = welcome.session;
    lost_at_.reset();
    last_sent_ = 0;  // what is not answered yet is sent again
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
      frame_bytes_ = static_cast<std::size_t>(welcome.frame_bytes);
      limits_ = StoreLimits{.key_bytes = static_cast<std::size_t>(welcome.key_bytes),
                            .value_bytes = static_cast<std::size_t>(welcome.value_bytes)};
      changed_.notify_all();
      if (over_) {
        connection_->say_goodbye();
      }
    }
    ping_interval_.reset();
    send_calls();
  }

  void answered(Response response) override {
    pause_ = first_pause;  // not when it opens: that may succeed again and again, and be of no use
    const std::lock_guard lock(mutex_);
    if (const auto call = calls_.find(response.number); call != calls_.end()) {
      call->second->response = std::move(response);
      call->second->done.notify_all();
    }
  }

  void ended(const std::string& why, bool refused) override {
    {
      const std::lock_guard lock(mutex_);
      open_ = false;
    }
    if (refused) {
      end(why, false);
    }
    try_again(why);
  }

  void try_again(const std::string& why) {
    if (over()) {
      drop_connection();
      return;
    }
    const auto now = Clock::steady().now();
    {
      const std::lock_guard lock(mutex_);
      trouble_ = why;
      if (!limits_) {
        lost_at_.reset();  // never reached: whoever makes the client says for how long to try
      } else if (!lost_at_) {
        lost_at_ = now;
      }
    }
    if (lost_at_ && *lost_at_ + options_.reconnect_limit <= now) {
      end("the connection was lost and could not be made again: " + why, false);
      return;
    }
    auto at = now + pause_;
    if (lost_at_) {
      at = std::min(at, *lost_at_ + options_.reconnect_limit);
    }
    pause_ = std::min(2 * pause_, last_pause);
    timer_.expires_at(at);
    timer_.async_wait([this](const error_code& error) {
      if (!error) {
        endpoints_.empty() ? resolve() : connect();
      } else {
        drop_connection();
      }
    });
  }

  // Sends the calls that this connection has not seen yet, in their order.
  void send_calls() {
    const std::lock_guard lock(mutex_);
    if (!open_ || over_) {
      return;
    }
    const auto now = Clock::steady().now();
    for (auto each = calls_.upper_bound(last_sent_); each != calls_.end(); ++each) {
      Request request = each->second->request;
      request.settled_below = calls_.begin()->first;
      // A call that is sent again has less time left.
      request.timeout =
          std::clamp(std::chrono::duration_cast<milliseconds>(each->second->deadline - now),
                     milliseconds{0}, request.timeout);
      connection_->send(store::encode(request));
      last_sent_ = each->first;
    }
    const Duration silence = will_silence_
                                 ? std::min<Duration>(*will_silence_, options_.silence_limit)
                                 : options_.silence_limit;
    const Duration interval = std::clamp<Duration>(silence / 4, milliseconds{1}, last_ping);
    if (ping_interval_ != interval) {
      ping_interval_ = interval;
      connection_->set_ping_interval(interval);
    }
  }

  bool over() {
    const std::lock_guard lock(mutex_);
    return over_.has_value();
  }

  void drop_connection() {
    if (connection_) {
      connection_->close();
    }
    const std::lock_guard lock(mutex_);
    open_ = false;
    if (over_) {
      connection_ended_ = true;
      changed_.notify_all();
    }
  }

  const TcpStoreOptions options_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::uint64_t, Call*> calls_;  ///< by number
  std::uint64_t last_number_ = 0;
  std::optional<std::string> over_;    ///< why no call is possible any more
  std::optional<StoreLimits> limits_;  ///< once the store has been reached
  std::size_t frame_bytes_ = 0;
  std::optional<milliseconds> will_silence_;
  std::string trouble_ = "no attempt has ended yet";  ///< why there is no connection
  bool open_ = false;
  bool connection_ended_ = false;  ///< for good

  store::IoThread io_;
  // The thread's.
  tcp::resolver resolver_;
  asio::steady_timer timer_;
  ClientConnection::Endpoints endpoints_;
  std::shared_ptr<ClientConnection> connection_;
  std::uint64_t instance_ = 0;
  std::uint64_t session_ = 0;
  std::uint64_t last_sent_ = 0;  ///< number of the last call sent on this connection
  std::optional<TimePoint> lost_at_;
  std::optional<Duration> ping_interval_;
  Duration pause_ = first_pause;
};

}  // namespace

Result<std::unique_ptr<Store>> connect_tcp_store(TcpStoreOptions options, TimePoint deadline) {
  auto client = std::make_unique<TcpStore>(std::move(options));
  if (const auto open = client->wait_open(deadline); !open) {
    return open.failure();
  }
  return std::unique_ptr<Store>(std::move(client));
}

}  // namespace troupe
