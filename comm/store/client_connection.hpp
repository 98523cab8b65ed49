/// One connection of a client to the store's server, from the attempt to make it to its end, with
/// the handshake and the signs of life.
///
/// Thread rules: the client's thread only.
#pragma once

#include "troupe/comm/store/frame_channel.hpp"
#include "troupe/comm/store/handshake.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <memory>
#include <string>
#include <vector>

namespace troupe::store {

class ClientConnection final : public FrameChannel::Receiver,
                               public std::enable_shared_from_this<ClientConnection> {
 public:
  using Endpoints = std::vector<boost::asio::ip::tcp::endpoint>;

  /// The client. None of these may destroy the connection before they return.
  class Host {
   public:
    Host() = default;
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;
    virtual ~Host() = default;
    /// `send` may be called from now on.
    virtual void opened(const Welcome& welcome) = 0;
    virtual void answered(Response response) = 0;
    /// The last call. `refused`: to try again is of no use.
    virtual void ended(const std::string& why, bool refused) = 0;
  };

  /// `attempt_limit`: from `start` until `opened`. `silence_limit`: of the server, from then on.
  ClientConnection(IoThread& io,
                   Host& host,
                   ClientHandshake handshake,
                   Duration attempt_limit,
                   Duration silence_limit);
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;
  ~ClientConnection() override { close(); }

  /// Tries one endpoint after the other.
  void start(const Endpoints& endpoints);
  void send(std::string_view frame) { channel_->send(frame); }
  /// A sign of life at least so often, from now on.
  void set_ping_interval(Duration interval);
  /// The client ends in good order; `ended` follows when the server has heard it.
  void say_goodbye();
  /// The host hears no more.
  void close();

 private:
  enum class Stage : std::uint8_t { connecting, challenge, welcome, open };

  void frame(std::string_view body) override;
  void ended(const std::string& why) override { end(why, false); }
  void connected();
  void end(const std::string& why, bool refused);
  void tick();
  void wait_tick(Duration duration);

  IoThread& io_;
  Host* host_;  ///< none: closed
  ClientHandshake handshake_;
  const Duration attempt_limit_;
  const Duration silence_limit_;
  boost::asio::ip::tcp::socket socket_;    ///< until connected
  std::shared_ptr<FrameChannel> channel_;  ///< from then on
  boost::asio::steady_timer timer_;
  const TimePoint began_;
  Duration ping_interval_;
  Stage stage_ = Stage::connecting;
};

}  // namespace troupe::store
