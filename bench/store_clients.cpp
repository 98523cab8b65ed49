// How long many processes take to find each other: clients of one store on loopback.
#include "benchmarks.hpp"
#include "troupe/comm/store/tcp_store.hpp"
#include "troupe/core/error.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace troupe::bench {

namespace {

/// A client with an event loop of its own has four, its connection's other end one.
constexpr std::uint64_t descriptors_per_client = 5;
constexpr std::uint64_t other_descriptors = 64;

/// Whether this process may have so many file descriptors; takes what it may have.
bool raise_descriptor_limit(std::uint64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return false;
  }
  if (limit.rlim_cur < wanted && limit.rlim_max >= wanted) {
    limit.rlim_cur = wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur >= wanted;
}

TimePoint patience() {
  return Clock::steady().now() + std::chrono::minutes{2};
}

struct Times {
  double join_ms = 0;
  double barrier_ms = 0;
};

/// Each client on a thread of its own, which waits with the others before each phase.
Times join(int clients) {
  const auto server = value_or_throw(StoreServer::start({.secret = "a secret"}));
  TcpStoreOptions options;
  options.server = server->address();
  options.secret = "a secret";
  std::latch ready(clients + 1);
  std::latch joined(clients + 1);
  std::latch met(clients + 1);
  std::vector<Result<void>> outcomes(static_cast<std::size_t>(clients));
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<std::size_t>(clients));
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] {
      Result<void>& outcome = outcomes[static_cast<std::size_t>(i)];
      ready.arrive_and_wait();
      auto client = connect_tcp_store(options, patience());
      joined.arrive_and_wait();
      outcome = client ? barrier(*client.value(), "all", i, clients, patience())
                       : Result<void>(client.failure());
      met.arrive_and_wait();
    });
  }
  ready.arrive_and_wait();
  const Nanoseconds begin = now_ns();
  joined.arrive_and_wait();
  const Nanoseconds all_joined = now_ns();
  met.arrive_and_wait();
  const Nanoseconds all_met = now_ns();
  threads.clear();
  for (const auto& outcome : outcomes) {
    if (!outcome) {
      throw Error(outcome.failure());
    }
  }
  return {.join_ms = static_cast<double>(all_joined - begin) * 1e-6,
          .barrier_ms = static_cast<double>(all_met - all_joined) * 1e-6};
}

}  // namespace

Table store_clients(const Effort& effort) {
  Table table{.name = "store",
              .title = "Clients that join one store on loopback (median of " +
                       std::to_string(effort.repetitions) + " runs, spread)",
              .columns = {{"clients", 0}, {"join_ms", 1}, {"barrier_ms", 1}},
              .rows = {},
              .notes = {"join: all connect at once and prove the secret, until the last has done "
                        "so; barrier: one of all clients, until the last has left it.",
                        "Clients are threads of one process, each with an event loop of its own; "
                        "the server is one more thread."}};
  for (const int clients : effort.quick ? std::vector{16} : std::vector{128, 512, 2048}) {
    const auto wanted =
        static_cast<std::uint64_t>(clients) * descriptors_per_client + other_descriptors;
    if (!raise_descriptor_limit(wanted)) {
      table.notes.push_back("SKIP: " + std::to_string(clients) + " clients take " +
                            std::to_string(wanted) +
                            " file descriptors, more than this process may have");
      continue;
    }
    std::vector<double> joins;
    std::vector<double> barriers;
    for (int repetition = 0; repetition < effort.repetitions; ++repetition) {
      const Times times = join(clients);
      joins.push_back(times.join_ms);
      barriers.push_back(times.barrier_ms);
    }
    table.rows.push_back({static_cast<double>(clients), spread_of(joins), spread_of(barriers)});
  }
  return table;
}

}  // namespace troupe::bench
