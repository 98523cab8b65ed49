#include "troupe/comm/store/client_connection.hpp"

#include <boost/asio/connect.hpp>

#include <limits>
#include <tuple>
#include <utility>

namespace troupe::store {

using boost::system::error_code;

ClientConnection::ClientConnection(IoThread& io,
                                   Host& host,
                                   ClientHandshake handshake,
                                   Duration attempt_limit,
                                   Duration silence_limit)
    : io_(io),
      host_(&host),
      handshake_(std::move(handshake)),
      attempt_limit_(attempt_limit),
      silence_limit_(silence_limit),
      socket_(io.context()),
      timer_(io.context()),
      began_(Clock::steady().now()),
      ping_interval_(silence_limit / 4) {}

void ClientConnection::start(const Endpoints& endpoints) {
  wait_tick(attempt_limit_);
  boost::asio::async_connect(
      socket_, endpoints,
      [weak = weak_from_this()](const error_code& error, const boost::asio::ip::tcp::endpoint&) {
        const auto self = weak.lock();
        if (!self || self->host_ == nullptr) {
          return;
        }
        if (error) {
          self->end(error.message(), false);
        } else {
          self->connected();
        }
      });
}

void ClientConnection::connected() {
  stage_ = Stage::challenge;
  // What a client sends is bounded by its callers, who wait for the answers.
  channel_ = std::make_shared<FrameChannel>(std::move(socket_), io_,
                                            std::numeric_limits<std::size_t>::max());
  channel_->start(*this);
  channel_->send(handshake_.hello());
}

void ClientConnection::close() {
  host_ = nullptr;
  error_code ignored;
  timer_.cancel(ignored);
  std::ignore = socket_.close(ignored);
  if (channel_) {
    channel_->close();
  }
}

void ClientConnection::end(const std::string& why, bool refused) {
  if (Host* host = host_; host != nullptr) {
    close();
    host->ended(why, refused);
  }
}

void ClientConnection::say_goodbye() {
  if (stage_ == Stage::open) {
    channel_->send(encode(FrameType::goodbye));
  } else {
    end("closed", false);
  }
}

// ---- frames -------------------------------------------------------------------------------------

void ClientConnection::frame(std::string_view body) {
  switch (stage_) {
    case Stage::connecting:
      return;
    case Stage::challenge:
      if (const auto proof = handshake_.challenge(body)) {
        stage_ = Stage::welcome;
        channel_->send(proof.value());
      } else {
        end(proof.failure().text, true);
      }
      return;
    case Stage::welcome:
      if (const auto welcome = handshake_.welcome(body)) {
        stage_ = Stage::open;
        channel_->set_frame_limit(static_cast<std::size_t>(welcome.value().frame_bytes));
        wait_tick(ping_interval_);
        host_->opened(welcome.value());
      } else {
        end(welcome.failure().text, true);
      }
      return;
    case Stage::open:
      if (type_of(body) == FrameType::pong) {
        return;
      }
      if (auto response = decode_response(body)) {
        host_->answered(std::move(*response));
      } else {
        end("it sent what is no answer", true);
      }
      return;
  }
}

// ---- signs of life ------------------------------------------------------------------------------

void ClientConnection::set_ping_interval(Duration interval) {
  ping_interval_ = interval;
  if (stage_ == Stage::open) {
    wait_tick(interval);
  }
}

void ClientConnection::tick() {
  const auto now = Clock::steady().now();
  if (stage_ != Stage::open) {
    if (began_ + attempt_limit_ <= now) {
      end(stage_ == Stage::connecting ? "no answer" : "no answer to the handshake", false);
    }
    return;
  }
  if (channel_->heard() + silence_limit_ <= now) {
    end("it gives no sign of life", false);
    return;
  }
  channel_->send(encode(FrameType::ping));
  wait_tick(ping_interval_);
}

void ClientConnection::wait_tick(Duration duration) {
  timer_.expires_after(duration);
  timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    if (const auto self = weak.lock(); self && !error && self->host_ != nullptr) {
      self->tick();
    }
  });
}

}  // namespace troupe::store
