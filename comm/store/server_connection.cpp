#include "troupe/comm/store/server_connection.hpp"

#include <algorithm>
#include <utility>

namespace troupe::store {

ServerConnection::ServerConnection(boost::asio::ip::tcp::socket socket,
                                   IoThread& io,
                                   std::string address,
                                   Host& host,
                                   const StoreServerOptions& options)
    : host_(host),
      options_(options),
      channel_(std::make_shared<FrameChannel>(
          std::move(socket),
          io,
          std::max(options.limits.outgoing_bytes, frame_bytes(options.limits) + 4))),
      timer_(io.context()),
      began_(Clock::steady().now()),
      handshake_(options.secret),
      client_(std::move(address)) {}

void ServerConnection::start() {
  channel_->start(*this);
  watch_deadline();
}

void ServerConnection::close() {
  channel_->close();
  timer_.cancel();
}

void ServerConnection::end(const std::string& why) {
  close();
  host_.ended(*this, why);
}

void ServerConnection::ended(const std::string& why) {
  timer_.cancel();
  host_.ended(*this, refusal_.empty() ? why : refusal_);
}

// The client is told why, which takes no longer than it would have had for the handshake.
void ServerConnection::refuse(const std::string& why) {
  refusal_ = why;
  stage_ = Stage::refused;
  channel_->send(encode(Refusal{why}));
  channel_->finish();
}

// ---- frames -------------------------------------------------------------------------------------

void ServerConnection::frame(std::string_view body) {
  switch (stage_) {
    case Stage::hello:
      if (const auto challenge = handshake_.hello(body)) {
        stage_ = Stage::proof;
        channel_->send(challenge.value());
      } else {
        refuse(challenge.failure().text);
      }
      return;
    case Stage::proof:
      take_proof(body);
      return;
    case Stage::open:
      open_frame(body);
      return;
    case Stage::refused:
      return;
  }
}

void ServerConnection::take_proof(std::string_view body) {
  const auto claim = handshake_.proof(body);
  if (!claim) {
    refuse(claim.failure().text);
    return;
  }
  client_ = quoted(claim.value().name) + " at " + client_;
  const auto welcome = host_.admit(*this, claim.value());
  if (!welcome) {
    refuse(welcome.failure().text);
    return;
  }
  stage_ = Stage::open;
  session_ = welcome.value().session;
  channel_->set_frame_limit(static_cast<std::size_t>(welcome.value().frame_bytes));
  channel_->send(handshake_.welcome(welcome.value()));
  watch_deadline();  // now another one
}

void ServerConnection::open_frame(std::string_view body) {
  const auto type = type_of(body);
  if (type == FrameType::ping) {
    host_.heard(*this);
    channel_->send(encode(FrameType::pong));
  } else if (type == FrameType::goodbye) {
    host_.goodbye(*this);
  } else if (auto request = decode_request(body)) {
    host_.submit(*this, std::move(*request));
  } else {
    end("it sent what is no request");
  }
}

// ---- deadlines ----------------------------------------------------------------------------------

TimePoint ServerConnection::deadline() const {
  if (stage_ != Stage::open) {
    return began_ + options_.handshake_limit;
  }
  const auto last =
      std::min(channel_->heard(), channel_->stalled_since().value_or(TimePoint::max()));
  return last + options_.idle_limit;
}

// Looks again when the deadline as it is now has passed, so that frames cost nothing here.
void ServerConnection::watch_deadline() {
  timer_.expires_at(deadline());
  timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self) {
      return;
    }
    if (self->deadline() > Clock::steady().now()) {
      self->watch_deadline();
    } else if (self->stage_ != Stage::open) {
      self->end("it did not prove the secret in time");
    } else if (self->channel_->heard() + self->options_.idle_limit > Clock::steady().now()) {
      self->end("it does not take what is sent to it");
    } else {
      self->end("it gave no sign of life");
    }
  });
}

}  // namespace troupe::store
