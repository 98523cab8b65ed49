/// Worlds of processes, each rank of which is a thread of the test: everything but the processes is
/// real (store, connections, payload over loopback).
#pragma once

#include "troupe/comm/store/tcp_store.hpp"
#include "troupe/runtime/world.hpp"

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::test {

struct JoinedOutcome {
  std::vector<std::optional<Failure>> failures;  ///< by rank
  std::vector<std::vector<std::string>> logs;    ///< texts of failures, by rank
};

struct JoinedRanks {
  std::chrono::milliseconds timeout = std::chrono::seconds{60};
  std::function<void(JoinOptions&, WorldOptions&)> change = [](JoinOptions&, WorldOptions&) {};

  JoinedOutcome run(int ranks, const std::function<void(World&)>& body) const {
    const std::unique_ptr<StoreServer> server = value_or_throw(StoreServer::start({}));
    const auto count = static_cast<std::size_t>(ranks);
    JoinedOutcome outcome{std::vector<std::optional<Failure>>(count),
                          std::vector<std::vector<std::string>>(count)};
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto index = static_cast<std::size_t>(rank);
        JoinOptions join;
        join.rank = rank;
        join.world_size = ranks;
        join.store_port = server->address().port;
        join.external_store = true;
        join.join_timeout = std::chrono::seconds{60};
        WorldOptions options{.timeout = timeout, .on_warning = [](const std::string&) {}};
        options.on_failure = [&, index](const std::string& text) {
          const std::lock_guard lock(mutex);
          outcome.logs[index].push_back(text);
        };
        change(join, options);
        try {
          World::join(join, options).run(body);
        } catch (const Error& error) {
          outcome.failures[index] = error.failure();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return outcome;
  }
};

}  // namespace troupe::test
