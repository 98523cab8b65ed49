/// A thread that runs one Asio event loop, and what all sockets of that loop share. No signal is
/// delivered to it: a trainer's handlers run on the trainer's threads.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <array>
#include <memory>
#include <span>
#include <thread>

namespace troupe::store {

/// A program that the trainer starts does not get this descriptor. It would keep a connection open
/// when its rank is gone.
void close_on_exec(int descriptor);

class IoThread {
 public:
  IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;
  ~IoThread() { stop(); }

  boost::asio::io_context& context() { return context_; }
  /// For one read at a time, on the thread.
  std::span<char> scratch() { return *scratch_; }
  /// The handler that runs now is the last one. Returns when the thread has ended; again: nothing.
  void stop();

 private:
  using Scratch = std::array<char, std::size_t{64} << 10>;

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  const std::unique_ptr<Scratch> scratch_;
  std::thread thread_;
};

}  // namespace troupe::store
