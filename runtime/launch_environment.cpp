#include "troupe/runtime/launch_environment.hpp"

#include "troupe/core/text.hpp"
#include "troupe/runtime/secret_file.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe {

namespace {

constexpr int world_size_max = 1 << 20;

/// Where a launcher says which rank a process is.
struct Launcher {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;  ///< empty: it does not say how many ranks this host has
};

// A launcher that was started by another one stands before it: mpirun starts its daemons with srun,
// srun starts troupe-run or torchrun.
constexpr Launcher ours{"TROUPE_RANK", "TROUPE_WORLD_SIZE", "TROUPE_LOCAL_RANK", ""};
constexpr Launcher torchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Launcher open_mpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Launcher pmi{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Launcher slurm{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""};
constexpr std::array outer{&open_mpi, &pmi, &slurm};

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Error({.code = ErrorCode::bad_configuration, .text = detail::concat(parts...)});
}

class Reader {
 public:
  explicit Reader(const LaunchVariables& variables) : variables_(variables) {}

  std::optional<JoinOptions> read() const {
    const Launcher* const launcher = find_launcher();
    if (launcher == nullptr) {
      refuse_store_without_rank();
      return std::nullopt;
    }
    JoinOptions join;
    read_place(*launcher, join);
    if (launcher == &torchrun) {
      check_against_outer(join);
    }
    read_store(*launcher, join);
    read_secret(join);
    read_address(join);
    join.failure_directory = text("TROUPE_FAILURE_DIR").value_or("");
    return join;
  }

 private:
  std::optional<std::string> text(std::string_view name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() || found->second.empty() ? std::nullopt
                                                              : std::optional(found->second);
  }
  bool has(std::string_view name) const { return text(name).has_value(); }

  std::optional<std::int64_t> number(const std::string& name,
                                     std::int64_t min,
                                     std::int64_t max) const {
    const auto value = text(name);
    return value ? std::optional(parsed(name, *value, *value, min, max)) : std::nullopt;
  }
  /// `digits` is the part of the variable's value that has to be a number.
  static std::int64_t parsed(const std::string& name,
                             const std::string& value,
                             std::string_view digits,
                             std::int64_t min,
                             std::int64_t max) {
    std::int64_t number = 0;
    const std::string text(digits);
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || rest != end || number < min || number > max) {
      refuse(name, " is '", value, "'; expected a whole number from ", min, " to ", max);
    }
    return number;
  }

  bool launched_by(const Launcher& launcher) const {
    // In the script of a Slurm job, outside of srun, there is a SLURM_PROCID too, and no step.
    return &launcher == &slurm ? has("SLURM_STEP_ID") && has("SLURM_PROCID")
                               : has(launcher.rank) || has(launcher.world_size);
  }

  const Launcher* find_launcher() const {
    for (const Launcher* const launcher : {&ours, &torchrun}) {
      if (launched_by(*launcher)) {
        return launcher;
      }
    }
    const auto found =
        std::ranges::find_if(outer, [this](const Launcher* each) { return launched_by(*each); });
    if (found == outer.end()) {
      return nullptr;
    }
    // srun --mpi=pmi2 sets both, and its own say more.
    const bool both =
        *found == &pmi && launched_by(slurm) && rank_and_size(pmi) == rank_and_size(slurm);
    return both ? &slurm : *found;
  }

  void refuse_store_without_rank() const {
    if (has("TROUPE_STORE")) {
      refuse(
          "TROUPE_STORE is set, but TROUPE_RANK and TROUPE_WORLD_SIZE are not, and no launcher "
          "says which rank this is");
    }
  }

  std::int64_t required(const char* name, const char* other, std::int64_t min) const {
    const auto value = number(name, min, world_size_max);
    if (!value) {
      refuse(name, " is not set, though ", other, " is");
    }
    return *value;
  }

  std::string world_size_name(const Launcher& launcher) const {
    // Where the step's own number is not told, it has all tasks of the job.
    return &launcher == &slurm && !has(launcher.world_size) ? "SLURM_NTASKS" : launcher.world_size;
  }

  std::pair<int, int> rank_and_size(const Launcher& launcher) const {
    const std::string size_name = world_size_name(launcher);
    const auto size = required(size_name.c_str(), launcher.rank, 1);
    const auto rank = required(launcher.rank, size_name.c_str(), 0);
    if (rank >= size) {
      refuse(launcher.rank, " is ", rank, ", but ", size_name, " is ", size);
    }
    return {static_cast<int>(rank), static_cast<int>(size)};
  }

  void read_place(const Launcher& launcher, JoinOptions& join) const {
    std::tie(join.rank, join.world_size) = rank_and_size(launcher);
    const auto local = number(launcher.local_rank, 0, world_size_max);
    join.local_rank = static_cast<int>(local.value_or(0));
    const std::int64_t ranks_here = local_size(launcher).value_or(join.world_size);
    if (join.local_rank >= ranks_here) {
      refuse(launcher.local_rank, " is ", join.local_rank, ", but this host has ", ranks_here,
             " of the ", join.world_size, " ranks");
    }
  }

  std::optional<std::int64_t> local_size(const Launcher& launcher) const {
    return *launcher.local_size == '\0' ? std::nullopt
                                        : number(launcher.local_size, 1, world_size_max);
  }

  /// RANK may have been set by hand, or be a leftover: then ranks that a launcher has started apart
  /// would all take themselves for the same one, or for a world of their own.
  void check_against_outer(const JoinOptions& join) const {
    if (has("TORCHELASTIC_RUN_ID") || has("TROUPE_LAUNCHER")) {
      return;
    }
    const auto found =
        std::ranges::find_if(outer, [this](const Launcher* each) { return launched_by(*each); });
    if (found == outer.end()) {
      return;
    }
    const auto [rank, size] = rank_and_size(**found);
    if (rank != join.rank || size != join.world_size) {
      refuse("RANK is ", join.rank, " and WORLD_SIZE is ", join.world_size, ", but ",
             (*found)->rank, " is ", rank, " and ", world_size_name(**found), " is ", size,
             "; unset what is left over, or set TROUPE_RANK and TROUPE_WORLD_SIZE");
    }
  }

  void read_store(const Launcher& launcher, JoinOptions& join) const {
    if (const auto store = text("TROUPE_STORE")) {
      read_store_address(*store, join);
      return;
    }
    if (join.world_size == 1) {
      return;  // serves itself, at any port
    }
    const auto host = text("MASTER_ADDR");
    // torchrun --standalone gives the host's own name, with which the store would need a secret.
    const bool private_to_host = host && all_on_this_host(launcher) && !has_secret();
    join.store_host = host && !private_to_host ? *host : host_of_first_rank(launcher);
    const auto port = number("MASTER_PORT", 1, 65535);
    join.store_port = static_cast<std::uint16_t>(port ? *port : port_of_job(launcher));
    if (port && launcher_is_torch_agent(launcher)) {
      if (*port == 65535) {
        refuse(
            "MASTER_PORT is 65535, where torchrun's agent listens, so the store of the ranks "
            "needs the next one; set TROUPE_STORE=host:port");
      }
      ++join.store_port;
    }
  }

  /// The agent serves a store of its own at MASTER_PORT then; ours takes the next one.
  bool launcher_is_torch_agent(const Launcher& launcher) const {
    return &launcher == &torchrun && !has("TROUPE_LAUNCHER") &&
           text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  }

  static void read_store_address(const std::string& store, JoinOptions& join) {
    const auto colon = store.rfind(':');
    std::string host = store.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) {
      host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string::npos) {
      host.clear();  // an IPv6 address without brackets: where the port begins is not told
    }
    if (colon == std::string::npos || host.empty()) {
      refuse("TROUPE_STORE is '", store, "'; expected host:port, or [address]:port for IPv6");
    }
    join.store_host = host;
    join.store_port = static_cast<std::uint16_t>(
        parsed("TROUPE_STORE", store, std::string_view(store).substr(colon + 1), 1, 65535));
  }

  bool all_on_this_host(const Launcher& launcher) const {
    return local_size(launcher) == rank_and_size(launcher).second ||
           (&launcher == &slurm && text("SLURM_STEP_NUM_NODES") == "1");
  }

  bool has_secret() const { return has("TROUPE_SECRET") || has("TROUPE_SECRET_FILE"); }

  std::string host_of_first_rank(const Launcher& launcher) const {
    if (all_on_this_host(launcher)) {
      return "127.0.0.1";
    }
    if (&launcher == &slurm) {
      for (const std::string name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
        if (const auto list = text(name)) {
          const auto host = first_host(*list);
          if (!host) {
            refuse(name, " is '", *list, "', which is no list of hosts");
          }
          return *host;
        }
      }
    }
    refuse("MASTER_ADDR is not set; expected the host of rank 0 (or TROUPE_STORE=host:port)");
  }

  std::int64_t port_of_job(const Launcher& launcher) const {
    if (&launcher == &slurm && has("SLURM_JOB_ID")) {
      constexpr std::int64_t many = std::int64_t{1} << 40;
      const auto job = number("SLURM_JOB_ID", 0, many).value_or(0);
      const auto step = number("SLURM_STEP_ID", 0, many).value_or(0);
      // Below the ports that Linux gives to outgoing connections (32768 on).
      return 16384 + (31 * job + step) % 16384;
    }
    refuse(
        "MASTER_PORT is not set; expected a free port of rank 0's host, for instance 29500 (or "
        "TROUPE_STORE=host:port)");
  }

  void read_secret(JoinOptions& join) const {
    join.secret = text("TROUPE_SECRET").value_or("");
    if (const auto path = text("TROUPE_SECRET_FILE")) {
      if (!join.secret.empty()) {
        refuse("TROUPE_SECRET and TROUPE_SECRET_FILE are both set; expected one of them");
      }
      join.secret = read_secret_file(*path);
    }
  }

  void read_address(JoinOptions& join) const {
    join.address = text("TROUPE_ADDRESS").value_or("");
    join.interface_name = text("TROUPE_INTERFACE").value_or("");
    if (!join.address.empty() && !join.interface_name.empty()) {
      refuse("TROUPE_ADDRESS and TROUPE_INTERFACE are both set; expected one of them");
    }
  }

  const LaunchVariables& variables_;
};

}  // namespace

LaunchVariables launch_variables() {
  LaunchVariables variables;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view line(*each);
    if (const auto equals = line.find('='); equals != std::string_view::npos) {
      variables.emplace(line.substr(0, equals), line.substr(equals + 1));
    }
  }
  return variables;
}

std::optional<JoinOptions> join_options(const LaunchVariables& variables) {
  return Reader(variables).read();
}

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const auto close = list.find(']', i);
    const auto first = list.substr(i + 1, list.find_first_of("-,]", i) - i - 1);
    if (close == std::string_view::npos || first.empty()) {
      return std::nullopt;
    }
    host += first;
    i = close;
  }
  const bool usable = !host.empty() && host.find_first_of("[] ()") == std::string::npos;
  return usable ? std::optional(host) : std::nullopt;
}

JoinOptions JoinOptions::from_environment() {
  return join_options(launch_variables()).value_or(JoinOptions{});
}

}  // namespace troupe
