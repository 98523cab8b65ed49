/// A world of processes whose ranks are threads of one test, over a store in memory.
#pragma once

#include "settle.hpp"
#include "shared_transport.hpp"
#include "troupe/comm/process/process_world.hpp"
#include "troupe/comm/store/memory_store.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {

/// Short, but longer than any wait that is not for something missing.
inline ProcessWorldOptions quick_options(int rank, int size) {
  ProcessWorldOptions options;
  options.rank = rank;
  options.world_size = size;
  options.name = "pid " + std::to_string(100 + rank) + " on host7";
  options.join_timeout = std::chrono::seconds{30};
  options.timeout = std::chrono::seconds{30};
  options.inquest_limit = std::chrono::milliseconds{400};
  options.linger_limit = std::chrono::seconds{2};
  return options;
}

/// One rank: its client of the store, its world, and a communicator of all on a stream.
class ProcessRank {
 public:
  ProcessRank(ProcessWorldOptions options,
              std::unique_ptr<Store> client,
              const std::shared_ptr<SharedHub>& hub,
              Duration collective_timeout)
      : store(std::move(client)), transport(hub, collective_timeout) {
    for (int each = 0; each < options.world_size; ++each) {
      all.push_back(each);
    }
    rank = options.rank;
    world = std::make_unique<ProcessWorld>(std::move(options), *store, transport);
    connect();
  }
  ~ProcessRank() { device.stop(); }
  ProcessRank(const ProcessRank&) = delete;
  ProcessRank& operator=(const ProcessRank&) = delete;

  void connect() { communicator = world->communicator(rank, all, 0); }

  Result<void> launch(const CollectiveCall& call) { return communicator->launch(call, stream); }
  Result<void> barrier(Ticket ticket) {
    return launch({.op = Collective::barrier, .ticket = ticket, .bucket = 3, .label = "block.1"});
  }
  /// Of this rank alone; returns the stream's failure.
  std::optional<Failure> settle() { return test::settle(stream).failure; }

  std::unique_ptr<Store> store;
  SharedTransport transport;
  int rank = 0;
  std::vector<int> all;
  std::unique_ptr<ProcessWorld> world;
  HostDevice device;
  HostStream& stream = device.create_host_stream("channel 0");
  std::unique_ptr<Communicator> communicator;
};

struct ProcessTrial {
  std::function<void(ProcessWorldOptions&)> change = [](ProcessWorldOptions&) {};
  Duration collective_timeout = std::chrono::seconds{30};
  std::shared_ptr<SharedHub> hub = std::make_shared<SharedHub>();
  std::shared_ptr<MemoryStoreHub> store = make_memory_store_hub();

  /// Runs `body` on each rank's thread; what it throws, or its world, comes back by rank.
  std::vector<std::optional<Failure>> run(int size,
                                          const std::function<void(ProcessRank&)>& body) const {
    std::vector<std::optional<Failure>> failures(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          ProcessWorldOptions options = quick_options(rank, size);
          change(options);
          ProcessRank own(std::move(options), make_memory_store(store), hub, collective_timeout);
          body(own);
        } catch (const Error& error) {
          failures[static_cast<std::size_t>(rank)] = error.failure();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return failures;
  }
};

}  // namespace troupe::test
