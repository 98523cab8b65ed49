#include "troupe/comm/store/server_connection.hpp"
#include "troupe/comm/store/tcp_store.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <future>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace troupe {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using store::ServerConnection;
using store::SessionId;

std::string text_of(const StoreAddress& address) {
  return address.host + " port " + std::to_string(address.port);
}

Failure failure(ErrorCode code, const StoreAddress& address, std::string_view what) {
  return {.code = code, .text = "the store at " + text_of(address) + ": " + std::string(what)};
}

class Server final : public StoreServer, public ServerConnection::Host {
 public:
  explicit Server(StoreServerOptions options)
      : options_(std::move(options)),
        state_(options_.limits),
        acceptor_(io_.context()),
        accept_again_(io_.context()),
        state_timer_(io_.context()) {}

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() override {
    io_.stop();  // all below is left to this thread then
    for (const auto& [serial, connection] : connections_) {
      connection->close();
    }
  }

  Result<void> listen() {
    error_code error;
    tcp::resolver resolver(io_.context());
    const auto& host = options_.listen.host;
    tcp::endpoint endpoint(asio::ip::make_address(host, error), options_.listen.port);
    if (error) {
      const auto found = resolver.resolve(host, std::to_string(options_.listen.port), error);
      if (error || found.empty()) {
        return failure(ErrorCode::network, options_.listen, "no such address: " + error.message());
      }
      endpoint = *found.begin();
    }
    if (options_.secret.empty() && !endpoint.address().is_loopback()) {
      return failure(ErrorCode::bad_configuration, options_.listen,
                     "beyond loopback a store needs a secret");
    }
    // In this order; the first that fails says why.
    std::ignore = acceptor_.open(endpoint.protocol(), error);
    if (!error) {
      store::close_on_exec(acceptor_.native_handle());
      std::ignore = acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    }
    if (!error) {
      std::ignore = acceptor_.bind(endpoint, error);
    }
    if (!error) {
      std::ignore = acceptor_.listen(backlog, error);
    }
    if (!error) {
      address_ = {endpoint.address().to_string(), acceptor_.local_endpoint(error).port()};
    }
    if (error) {
      return failure(ErrorCode::network, options_.listen, "cannot listen: " + error.message());
    }
    asio::post(io_.context(), [this] { accept(); });
    return {};
  }

  StoreAddress address() const override { return address_; }

  void stop_listening() override {
    std::promise<void> closed;
    asio::post(io_.context(), [&] {
      error_code ignored;
      std::ignore = acceptor_.close(ignored);
      accept_again_.cancel(ignored);
      closed.set_value();
    });
    closed.get_future().wait();
  }

 private:
  static constexpr int backlog = 4096;

  // ---- connections

  void accept() {
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (!acceptor_.is_open()) {
        return;  // also with a socket that was accepted just before
      }
      if (error) {  // no file descriptors, for instance; others may be given back meanwhile
        accept_again_.expires_after(std::chrono::milliseconds{50});
        accept_again_.async_wait([this](const error_code& stopped) {
          if (!stopped) {
            accept();
          }
        });
        return;
      }
      take(std::move(socket));
      accept();
    });
  }

  void take(tcp::socket socket) {
    if (connections_.size() >= options_.limits.connections) {
      const auto waiting = std::ranges::find_if(
          connections_, [](const auto& each) { return each.second->session() == 0; });
      if (waiting == connections_.end()) {
        return;  // closes it: everybody here has proved the secret
      }
      const auto oldest = waiting->second;
      oldest->close();
      ended(*oldest, "there are more connections than the store takes");
    }
    error_code error;
    const auto remote = socket.remote_endpoint(error);
    if (error) {
      return;  // gone already
    }
    const StoreAddress address{remote.address().to_string(), remote.port()};
    const auto connection = std::make_shared<ServerConnection>(std::move(socket), io_,
                                                               text_of(address), *this, options_);
    connections_.emplace(++last_serial_, connection);
    serials_.emplace(connection.get(), last_serial_);
    connection->start();
  }

  Result<store::Welcome> admit(ServerConnection& connection,
                               const store::ServerHandshake::Claim& claim) override {
    const auto now = Clock::steady().now();
    SessionId session = claim.session;
    if (session == 0) {
      session = state_.open(now);
    } else if (claim.instance != instance_ || !state_.resume(session, now)) {
      return Failure{.code = ErrorCode::network,
                     .text =
                         "the store does not know this client: it was started anew, or the "
                         "client was away for too long"};
    }
    if (const auto before = by_session_.find(session); before != by_session_.end()) {
      const auto old = connections_.at(serials_.at(before->second));
      old->close();
      by_session_.erase(before);
      ended(*old, "it has made a new connection");
    }
    by_session_.emplace(session, &connection);
    return store::Welcome{.instance = instance_,
                          .session = session,
                          .key_bytes = options_.limits.key_bytes,
                          .value_bytes = options_.limits.value_bytes,
                          .frame_bytes = store::frame_bytes(options_.limits)};
  }

  void ended(ServerConnection& connection, const std::string& why) override {
    const auto keep = forget(connection);
    if (const auto session = by_session_.find(connection.session());
        session != by_session_.end() && session->second == &connection) {
      by_session_.erase(session);
      state_.lose(connection.session(), Clock::steady().now());
    }
    if (options_.on_disconnect) {
      options_.on_disconnect("client " + connection.client() + ": " + why);
    }
    deliver();
  }

  /// The connection may be the caller: it lives until that has returned.
  std::shared_ptr<ServerConnection> forget(ServerConnection& connection) {
    const auto serial = serials_.find(&connection);
    const auto found = connections_.find(serial->second);
    auto connected = std::move(found->second);
    connections_.erase(found);
    serials_.erase(serial);
    asio::post(io_.context(), [connected] {});
    return connected;
  }

  // ---- requests

  void submit(ServerConnection& connection, store::Request request) override {
    state_.submit(connection.session(), std::move(request), Clock::steady().now());
    deliver();
  }

  void heard(ServerConnection& connection) override {
    state_.hear(connection.session(), Clock::steady().now());
  }

  void goodbye(ServerConnection& connection) override {
    state_.end(connection.session());
    by_session_.erase(connection.session());
    forget(connection)->close();
    deliver();
  }

  // Sends the answers that there are, and sees to it that time passes for the state.
  void deliver() {
    for (const auto& [session, response] : state_.take_answers()) {
      if (const auto found = by_session_.find(session); found != by_session_.end()) {
        found->second->send(response);
      }
    }
    const auto due = state_.next_due();
    if (due && (!timer_at_ || *due < *timer_at_)) {
      timer_at_ = due;
      state_timer_.expires_at(*due);
      state_timer_.async_wait([this](const error_code& error) {
        if (!error) {
          timer_at_.reset();
          state_.advance(Clock::steady().now());
          deliver();
        }
      });
    }
  }

  const StoreServerOptions options_;
  const std::uint64_t instance_ = store::random_number();
  StoreAddress address_;
  store::IoThread io_;
  // From here on: the thread's.
  store::StoreState state_;
  tcp::acceptor acceptor_;
  asio::steady_timer accept_again_;
  asio::steady_timer state_timer_;
  std::optional<TimePoint> timer_at_;  ///< when the state's timer ends
  std::uint64_t last_serial_ = 0;
  std::map<std::uint64_t, std::shared_ptr<ServerConnection>> connections_;  ///< oldest first
  std::map<const ServerConnection*, std::uint64_t> serials_;
  std::map<SessionId, ServerConnection*> by_session_;
};

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::start(StoreServerOptions options) {
  auto server = std::make_unique<Server>(std::move(options));
  if (const auto listening = server->listen(); !listening) {
    return listening.failure();
  }
  return std::unique_ptr<StoreServer>(std::move(server));
}

}  // namespace troupe
