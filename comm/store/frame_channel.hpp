/// One TCP connection as frames: what server and client have in common. Never blocks.
///
/// Thread rules: the loop's thread only. A channel keeps itself alive while it has something under
/// way; its receiver closes it before it goes.
#pragma once

#include "troupe/comm/store/io_thread.hpp"
#include "troupe/comm/store/protocol.hpp"
#include "troupe/comm/waiting.hpp"

#include <boost/asio/ip/tcp.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::store {

class FrameChannel : public std::enable_shared_from_this<FrameChannel> {
 public:
  class Receiver {
   public:
    Receiver() = default;
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;
    virtual ~Receiver() = default;
    /// A frame's body, valid during the call. May close the channel, and may destroy the receiver.
    virtual void frame(std::string_view body) = 0;
    /// The connection has ended, for this reason; the last call. Not after `close`.
    virtual void ended(const std::string& why) = 0;
  };

  /// `socket` is connected. More than `outgoing_limit` bytes that the other side does not take end
  /// the connection.
  FrameChannel(boost::asio::ip::tcp::socket socket, IoThread& io, std::size_t outgoing_limit);

  void start(Receiver& receiver);
  /// For frames of which nothing has come yet.
  void set_frame_limit(std::size_t bytes) { reader_.set_limit(bytes); }
  /// `frame`: with its length.
  void send(std::string_view frame);
  /// Takes no more frames, and closes when all has been sent. `ended` is called then.
  void finish();
  /// The receiver hears no more.
  void close();

  /// When something came from the other side last.
  TimePoint heard() const { return heard_; }
  /// Since when the other side takes nothing of what waits to be sent; nothing if nothing waits.
  std::optional<TimePoint> stalled_since() const;

 private:
  void read();
  void readable(const boost::system::error_code& error);
  void write();
  void written(const boost::system::error_code& error, std::size_t bytes);
  void fail(const std::string& why);
  void fail_finished() { fail(end_reason_); }

  boost::asio::ip::tcp::socket socket_;
  IoThread& io_;
  const std::size_t outgoing_limit_;
  Receiver* receiver_ = nullptr;  ///< none: closed
  FrameReader reader_{handshake_frame_bytes};
  TimePoint heard_;
  std::string outgoing_;      ///< waits behind `writing_`
  std::string writing_;       ///< is being sent
  std::size_t written_ = 0;   ///< bytes of `writing_`
  TimePoint write_progress_;  ///< when `writing_` began or something of it was taken
  bool finishing_ = false;
  std::string end_reason_ = "all has been said";
};

}  // namespace troupe::store
