#include "troupe/comm/store/frame_channel.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

#include <tuple>
#include <utility>

namespace troupe::store {

namespace asio = boost::asio;
using boost::system::error_code;

FrameChannel::FrameChannel(asio::ip::tcp::socket socket, IoThread& io, std::size_t outgoing_limit)
    : socket_(std::move(socket)),
      io_(io),
      outgoing_limit_(outgoing_limit),
      heard_(Clock::steady().now()) {
  close_on_exec(socket_.native_handle());
}

void FrameChannel::start(Receiver& receiver) {
  receiver_ = &receiver;
  error_code error;
  std::ignore = socket_.non_blocking(true, error);
  // Requests are short and waited for.
  std::ignore = socket_.set_option(asio::ip::tcp::no_delay(true), error);
  read();
}

void FrameChannel::close() {
  receiver_ = nullptr;
  error_code ignored;
  std::ignore = socket_.close(ignored);
}

void FrameChannel::fail(const std::string& why) {
  Receiver* receiver = receiver_;
  if (receiver != nullptr) {
    close();
    receiver->ended(why);
  }
}

// ---- reading ------------------------------------------------------------------------------------

// Waits first and reads then, so that one buffer does for all connections of the loop.
void FrameChannel::read() {
  socket_.async_wait(
      asio::socket_base::wait_read,
      [self = shared_from_this()](const error_code& error) { self->readable(error); });
}

void FrameChannel::readable(const error_code& error) {
  if (receiver_ == nullptr) {
    return;
  }
  if (error) {
    fail(error.message());
    return;
  }
  const auto scratch = io_.scratch();
  error_code read_error;
  const auto bytes = socket_.read_some(asio::buffer(scratch.data(), scratch.size()), read_error);
  if (read_error == asio::error::eof) {
    fail("the other side has closed the connection");
    return;
  }
  if (read_error && read_error != asio::error::would_block) {
    fail(read_error.message());
    return;
  }
  if (bytes > 0 && !finishing_) {
    heard_ = Clock::steady().now();
    reader_.feed({scratch.data(), bytes});
    while (receiver_ != nullptr && !finishing_) {
      const auto body = reader_.next();
      if (!body) {
        break;
      }
      receiver_->frame(*body);
    }
    if (reader_.broken()) {
      fail("a frame has a length that none may have");
    }
  }
  if (receiver_ != nullptr) {
    read();
  }
}

// ---- writing ------------------------------------------------------------------------------------

void FrameChannel::send(std::string_view frame) {
  if (receiver_ == nullptr || finishing_) {
    return;
  }
  outgoing_ += frame;
  if (writing_.size() - written_ + outgoing_.size() > outgoing_limit_) {
    // Not from here: the caller may be in the middle of something.
    outgoing_.clear();
    end_reason_ = "it does not take what is sent to it";
    finishing_ = true;
    asio::post(socket_.get_executor(), [self = shared_from_this()] { self->fail_finished(); });
    return;
  }
  if (writing_.empty()) {
    write();
  }
}

void FrameChannel::write() {
  if (writing_.empty()) {
    std::swap(writing_, outgoing_);
    write_progress_ = Clock::steady().now();
  }
  socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](const error_code& error, std::size_t bytes) {
                             self->written(error, bytes);
                           });
}

void FrameChannel::written(const error_code& error, std::size_t bytes) {
  if (receiver_ == nullptr) {
    return;
  }
  if (error) {
    fail(error.message());
    return;
  }
  written_ += bytes;
  write_progress_ = Clock::steady().now();
  if (written_ == writing_.size()) {
    written_ = 0;
    writing_.clear();
    if (constexpr std::size_t kept = 65536; writing_.capacity() > kept) {
      std::string().swap(writing_);  // there may be thousands of connections
    }
  }
  if (!writing_.empty() || !outgoing_.empty()) {
    write();
  } else if (finishing_) {
    fail_finished();
  }
}

void FrameChannel::finish() {
  finishing_ = true;
  if (writing_.empty()) {
    asio::post(socket_.get_executor(), [self = shared_from_this()] { self->fail_finished(); });
  }
}

std::optional<TimePoint> FrameChannel::stalled_since() const {
  return writing_.empty() ? std::nullopt : std::optional(write_progress_);
}

}  // namespace troupe::store
