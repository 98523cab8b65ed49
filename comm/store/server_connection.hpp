/// A client as the store's server sees it: the handshake, then its requests. Whatever the client
/// does, this ends in bounded time and takes bounded memory.
///
/// Thread rules: the server's thread only.
#pragma once

#include "troupe/comm/store/frame_channel.hpp"
#include "troupe/comm/store/handshake.hpp"
#include "troupe/comm/store/store_state.hpp"
#include "troupe/comm/store/tcp_store.hpp"

#include <boost/asio/steady_timer.hpp>

#include <memory>
#include <string>

namespace troupe::store {

class ServerConnection final : public FrameChannel::Receiver,
                               public std::enable_shared_from_this<ServerConnection> {
 public:
  /// The server. None of these may destroy the connection before they return.
  class Host {
   public:
    Host() = default;
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;
    virtual ~Host() = default;
    /// The client has proved the secret; what to welcome it with, or why it cannot come in.
    virtual Result<Welcome> admit(ServerConnection& connection,
                                  const ServerHandshake::Claim& claim) = 0;
    /// It has been welcomed: `send` may be called.
    virtual void submit(ServerConnection& connection, Request request) = 0;
    virtual void heard(ServerConnection& connection) = 0;
    virtual void goodbye(ServerConnection& connection) = 0;
    /// The last call.
    virtual void ended(ServerConnection& connection, const std::string& why) = 0;
  };

  ServerConnection(boost::asio::ip::tcp::socket socket,
                   IoThread& io,
                   std::string address,
                   Host& host,
                   const StoreServerOptions& options);
  ServerConnection(const ServerConnection&) = delete;
  ServerConnection& operator=(const ServerConnection&) = delete;
  ~ServerConnection() override { channel_->close(); }

  void start();
  void send(const Response& response) { channel_->send(encode(response)); }
  /// The host hears no more.
  void close();

  SessionId session() const { return session_; }  ///< 0 until admitted
  const std::string& client() const { return client_; }

 private:
  enum class Stage : std::uint8_t { hello, proof, open, refused };

  void frame(std::string_view body) override;
  void ended(const std::string& why) override;
  void open_frame(std::string_view body);
  void take_proof(std::string_view body);
  void refuse(const std::string& why);
  void end(const std::string& why);
  TimePoint deadline() const;
  void watch_deadline();

  Host& host_;
  const StoreServerOptions& options_;
  const std::shared_ptr<FrameChannel> channel_;
  boost::asio::steady_timer timer_;
  const TimePoint began_;
  ServerHandshake handshake_;
  Stage stage_ = Stage::hello;
  SessionId session_ = 0;
  std::string client_;  ///< its address and, once it has proved the secret, its name
  std::string refusal_;
};

}  // namespace troupe::store
