// A process as one rank of a world: what it connects to, in which order, and what it leaves behind.
#include "troupe/comm/local_communicator.hpp"
#include "troupe/comm/process/process_world.hpp"
#include "troupe/comm/store/tcp_store.hpp"
#include "troupe/runtime/processes/failure_report.hpp"
#include "troupe/runtime/processes/host.hpp"
#include "troupe/runtime/processes/stop_signal.hpp"
#include "troupe/runtime/processes/world_setup.hpp"

#ifdef TROUPE_WITH_GLOO
#include "troupe/comm/gloo/gloo_transport.hpp"
#endif

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

namespace troupe {

namespace {

constexpr int processes_max = 65536;

/// Who waits for others so long says so, once.
constexpr std::chrono::seconds patience{10};

/// A store that is gone is looked for no longer: without it nobody hears of the others, and who
/// comes back later than `ProcessWorldOptions::reconnect_grace` has been given up by them.
constexpr std::chrono::seconds reconnect_limit{2};

/// However short the silence may be, connecting takes a while.
constexpr std::chrono::milliseconds connect_limit{1000};
constexpr std::chrono::milliseconds limit_max = std::chrono::hours{24 * 365};

/// So many of the clients that the store refuses or loses, the trainer hears of.
constexpr int disconnections_told = 20;

/// Brings the world's failures to the rank's actors, from when these exist until they end.
class FailureRelay {
 public:
  /// As long as it lives, `actors` hear; it goes before they do.
  class Attached {
   public:
    Attached(FailureRelay& relay, RankActors& actors) : relay_(relay) {
      const std::lock_guard lock(relay_.mutex_);
      relay_.actors_ = &actors;
      if (relay_.early_) {
        actors.peer_failed(1, *relay_.early_);
      }
    }
    ~Attached() {
      const std::lock_guard lock(relay_.mutex_);
      relay_.actors_ = nullptr;
    }
    Attached(const Attached&) = delete;
    Attached& operator=(const Attached&) = delete;

   private:
    FailureRelay& relay_;
  };

  void tell(std::uint64_t epoch, const Failure& failure) {
    const std::lock_guard lock(mutex_);
    if (actors_ != nullptr) {
      actors_->peer_failed(epoch, failure);
    } else {
      early_ = failure;
    }
  }

 private:
  std::mutex mutex_;  // guards what follows
  RankActors* actors_ = nullptr;
  std::optional<Failure> early_;
};

/// A rank that is alone: nobody is connected to.
void run_alone(const WorldOptions& options, const std::function<void(World&)>& body) {
  ActorSystem actors;
  LocalWorld local(1, options.timeout);
  RankEnvironment environment = environment_of(0, options, choose_poll(options, 1));
  environment.actors = &actors;
  environment.fabric = &local;
  environment.stop_wished = &StopSignal::came;
  const std::shared_ptr<Waiter> waiter = environment.waiter;
  {
    const StopSignal stop;
    RankContext context(std::move(environment));
    context.run(body);
  }
  if (const auto failure = local.first_failure().get()) {
    throw Error(*failure);
  }
}

/// A failure in the trainer's code that receives texts cannot stop what goes on.
template <class F>
void quietly(F f) {
  try {
    f();
  } catch (...) {
    return;
  }
}

std::unique_ptr<StoreServer> serve_store(const JoinOptions& join,
                                         std::function<void(const std::string&)> warn) {
  if (join.rank != 0 || join.external_store) {
    return nullptr;
  }
  // Peers reach this host by a name that may mean something else here.
  std::string host = join.store_host;
  if (!is_loopback(host)) {
    const auto own = address_towards(host, join.store_port);
    host = own && own.value().find(':') != std::string::npos ? "::" : "0.0.0.0";
  }
  StoreServerOptions options;
  options.listen = {host, join.store_port};
  options.secret = join.secret;
  // A rank with the wrong secret may be unable to say so itself; but no stranger fills the log.
  options.on_disconnect = [warn = std::move(warn),
                           left = disconnections_told](const std::string& who_and_why) mutable {
    if (left > 0) {
      --left;
      quietly([&] {
        warn("the store has lost " + who_and_why +
             (left == 0 ? " (it tells of no more that it loses)" : ""));
      });
    }
  };
  return value_or_throw(StoreServer::start(std::move(options)));
}

Result<std::unique_ptr<Store>> connect_patiently(
    const TcpStoreOptions& client,
    Duration timeout,
    const std::function<void(const std::string&)>& warn) {
  const TimePoint began = Clock::steady().now();
  const TimePoint deadline = began + timeout;
  const TimePoint early = began + std::min<Duration>(timeout, patience);
  auto store = connect_tcp_store(client, early);
  if (store || early == deadline || Clock::steady().now() < early) {
    return store;
  }
  quietly([&] { warn(client.name + " goes on waiting: " + store.failure().text); });
  return connect_tcp_store(client, deadline);
}

void make_failure_directory(const std::string& folder) {
  std::error_code error;
  if (!folder.empty() && !std::filesystem::create_directories(folder, error) && error) {
    throw Error({.code = ErrorCode::bad_configuration,
                 .text = "JoinOptions::failure_directory (TROUPE_FAILURE_DIR) is " + folder +
                         ", which cannot be made: " + error.message()});
  }
}

std::unique_ptr<GroupTransport> make_transport(const JoinOptions& join,
                                               const WorldOptions& options,
                                               Store& store) {
#ifdef TROUPE_WITH_GLOO
  GlooOptions gloo;
  gloo.address = join.address;
  gloo.interface_name = join.interface_name;
  if (join.address.empty() && join.interface_name.empty()) {
    gloo.address = value_or_throw(address_towards(join.store_host, join.store_port));
  }
  gloo.sum_order = join.ring_order ? SumOrder::ring : SumOrder::ranks;
  gloo.timeout = options.timeout;
  return make_gloo_transport(std::move(gloo), store);
#else
  static_cast<void>(join);
  static_cast<void>(options);
  static_cast<void>(store);
  throw Error(
      {.code = ErrorCode::bad_configuration,
       .text = "World::join: this Troupe was built without Gloo, which connects processes"});
#endif
}

/// Logs what the dumps of all ranks say together.
void log_summary(const std::function<void(const std::string&)>& log,
                 const std::map<int, std::string>& accounts,
                 int world_size) {
  std::map<int, LaunchDump> dumps;
  for (const auto& [rank, account] : accounts) {
    if (auto dump = launch_dump(account)) {
      dumps.emplace(rank, *std::move(dump));
    }
  }
  log("the world failed: " + summarize(dumps, world_size));
}

}  // namespace

World::Joined World::join(JoinOptions join, WorldOptions options) {
  const auto refuse = [](const std::string& text) {
    throw Error({.code = ErrorCode::bad_configuration, .text = "JoinOptions::" + text});
  };
  check(options);
  if (join.world_size < 1 || join.world_size > processes_max) {
    refuse("world_size is " + std::to_string(join.world_size) + "; expected 1 to " +
           std::to_string(processes_max));
  }
  if (join.rank < 0 || join.rank >= join.world_size) {
    refuse("rank is " + std::to_string(join.rank) + "; expected 0 to " +
           std::to_string(join.world_size - 1));
  }
  if (join.world_size > 1 && join.store_port == 0) {
    refuse("store_port is 0; expected the port of the store, the same on all ranks");
  }
  if (join.world_size > 1 && join.secret.empty() && !is_loopback(join.store_host)) {
    refuse("secret is empty, but the store is at " + join.store_host +
           ", beyond loopback; expected the job's secret, the same on all ranks (TROUPE_SECRET or "
           "TROUPE_SECRET_FILE)");
  }
  const auto usable = [](std::chrono::milliseconds limit) {
    return limit > std::chrono::milliseconds::zero() && limit <= limit_max;
  };
  if (!usable(join.join_timeout) || !usable(join.silence_limit)) {
    refuse("join_timeout and silence_limit are " + std::to_string(join.join_timeout.count()) +
           " and " + std::to_string(join.silence_limit.count()) +
           " ms; expected more than 0 and at most a year");
  }
  return {std::move(join), std::move(options)};
}

World::Joined World::join(WorldOptions options) {
  return join(JoinOptions::from_environment(), std::move(options));
}

void World::Joined::run(const std::function<void(World&)>& body) const {
  if (join_.world_size == 1) {
    run_alone(options_, body);
    return;
  }
  make_failure_directory(join_.failure_directory);
  const std::string name = process_name();
  RankEnvironment environment =
      environment_of(join_.rank, options_, choose_poll(options_, join_.world_size));
  const std::shared_ptr<Waiter> waiter = environment.waiter;
  const auto log = environment.log;
  const std::unique_ptr<StoreServer> server = serve_store(join_, environment.warn);
  TcpStoreOptions client;
  client.server = {join_.store_host, join_.store_port};
  client.secret = join_.secret;
  client.reconnect_limit = reconnect_limit;
  client.silence_limit = std::max(join_.silence_limit, connect_limit);
  client.name = "rank " + std::to_string(join_.rank) + " (" + name + ")";
  const std::unique_ptr<Store> store =
      value_or_throw(connect_patiently(client, join_.join_timeout, environment.warn));
  const std::unique_ptr<GroupTransport> transport = make_transport(join_, options_, *store);

  ActorSystem actors;
  FailureRelay relay;
  ProcessWorldOptions how;
  how.rank = join_.rank;
  how.world_size = join_.world_size;
  how.name = name;
  how.store_rank = join_.external_store ? -1 : 0;
  how.join_timeout = join_.join_timeout;
  how.timeout = options_.timeout;
  how.silence_limit = join_.silence_limit;
  how.patience = patience;
  how.on_waiting = [warn = environment.warn](const std::string& text) {
    quietly([&] { warn(text); });
  };
  if (server != nullptr) {
    how.close_store = [&server] { server->stop_listening(); };
  }
  how.on_failure = [&relay](std::uint64_t epoch, const Failure& failure) {
    relay.tell(epoch, failure);
  };
  how.on_accounts = [&log, size = join_.world_size](const std::map<int, std::string>& accounts) {
    quietly([&] { log_summary(log, accounts, size); });
  };
  ProcessWorld world(std::move(how), *store, *transport);
  const StopSignal stop;  // until here nobody could act on the wish: SIGTERM ends the process

  environment.actors = &actors;
  environment.fabric = &world;
  environment.stop_wished = &StopSignal::came;
  environment.on_dump = [&](const LaunchDump& dump) {
    world.share_account(to_json(shortened(dump)));
    if (!join_.failure_directory.empty()) {
      if (const auto written = write_failure(join_.failure_directory, dump); !written) {
        quietly([&] { log(written.failure().text); });
      }
    }
  };
  try {
    RankContext context(std::move(environment));
    const FailureRelay::Attached attached(relay, context.actors());
    context.run(body);
    world.await_departures();
    if (const auto failure = world.failure()) {
      context.actors().fail(*failure);  // it tells of it, also if its trainer was done before
    }
  } catch (const Error& error) {
    throw Error(world.report(error.failure()));  // of the context's construction
  }
  if (const auto failure = world.failure()) {
    throw Error(*failure);
  }
}

}  // namespace troupe
