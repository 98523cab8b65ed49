/// Stands between clients and a server on loopback, and is a bad network: cuts connections, in the
/// middle of messages too, holds back all bytes, or lets nobody in.
///
/// Thread rules: any thread; one of its own forwards.
#pragma once

#include "raw_client.hpp"

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <random>
#include <string>
#include <thread>

namespace troupe::test {

class CuttingProxy {
 public:
  explicit CuttingProxy(std::uint16_t server_port);
  ~CuttingProxy();
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;

  std::uint16_t port() const { return port_; }
  /// From now on each connection is cut after a random number of bytes, either way, below `bytes`.
  void cut_after(std::uint32_t seed, int bytes);
  void stop_cutting();
  /// Ends all connections there are.
  void cut_all() { cut_all_ = true; }
  /// Nothing passes in either direction as long as this is set; connections stay.
  void hold(bool held) { held_ = held; }
  /// Connections are closed as soon as they are made, as long as this is set.
  void keep_out(bool out) { kept_out_ = out; }
  int cuts() const { return cuts_; }
  int connections() const { return connections_; }

 private:
  struct Pair {
    Descriptor client;
    Descriptor server;
    long left = -1;  ///< bytes until it is cut; -1: never
  };

  void run();
  void accept_one();
  bool forward(Pair& pair, const Descriptor& from, const Descriptor& to);
  long draw_life();

  const std::uint16_t server_port_;
  Descriptor listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> ended_ = false;
  std::atomic<bool> cut_all_ = false;
  std::atomic<bool> held_ = false;
  std::atomic<bool> kept_out_ = false;
  std::atomic<int> cuts_ = 0;
  std::atomic<int> connections_ = 0;
  std::mutex mutex_;  // guards the next two
  std::mt19937 random_;
  int life_bytes_ = 0;     ///< 0: connections are not cut
  std::list<Pair> pairs_;  ///< the thread's
  std::thread thread_;
};

}  // namespace troupe::test
