// The GPT trainer on two hosts with a link of a given rate: what a step takes with communication
// behind computation, with each waiting for the other, and without any communication.
//
//     bench/two_hosts_net.sh 200mbit troupe_two_hosts --link-mbit 200      (./dev bench
//     --two-hosts)
//
// Hosts are network namespaces, each with one rank on one core. The batch is chosen so that
// computation takes as long as communication, and 1.5 times as long.
#include "step_bounds.hpp"
#include "troupe/bench/link_report.hpp"
#include "troupe/bench/machine.hpp"
#include "troupe/bench/table.hpp"
#include "troupe/runtime/launch/free_port.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace troupe::bench;

struct Settings {
  std::vector<Host> hosts;
  troupe::launch::FreePort store_port;
  double link_mbit = 200;
  double seconds = 5;
  int runs = 3;
  std::vector<double> ratios{1, 1.5};
  gpt::Config config{.layers = 24, .width = 64, .heads = 4, .sequence = 16, .batch = 1};
};

enum class Mode : std::uint8_t { compute_only, overlap, no_overlap };

/// Both ranks at once; the first one's numbers.
RankNumbers run(const Settings& settings, Mode mode, std::int64_t batch, double seconds) {
  std::vector<RankRun> runs;
  for (int rank = 0; rank < 2; ++rank) {
    RankRun each;
    each.options.config = settings.config;
    each.options.config.batch = batch;
    each.options.overlap = mode != Mode::no_overlap;
    each.host = settings.hosts[static_cast<std::size_t>(rank)];
    each.core = rank;
    each.seconds = seconds;
    each.options.optimizer.kind = gpt::OptimizerOptions::Kind::sgd;
    if (mode != Mode::compute_only) {
      troupe::JoinOptions& join = each.options.join.emplace();
      join.rank = rank;
      join.world_size = 2;
      join.store_host = settings.hosts.front().address;
      join.store_port = settings.store_port.number();
      join.address = each.host.address;
      join.secret = "of this benchmark";
    }
    each.options.ranks = 2;
    runs.push_back(std::move(each));
  }
  return run_ranks(runs).front();
}

/// The batch with which a step computes for about so long.
std::int64_t batch_for(const Settings& settings, double compute_ns) {
  constexpr std::int64_t small = 2;
  constexpr std::int64_t large = 10;
  const double seconds = std::min(1.5, settings.seconds);
  const double at_small = run(settings, Mode::compute_only, small, seconds).step_ns;
  const double at_large = run(settings, Mode::compute_only, large, seconds).step_ns;
  const double each = (at_large - at_small) / (large - small);
  const double batch = (compute_ns - at_small) / each + small;
  return std::max<std::int64_t>(1, std::llround(batch));
}

/// What a mode took, and computation alone right before it: on a machine that does other things,
/// too, only what was measured together can be compared.
struct Pair {
  RankNumbers alone;
  RankNumbers numbers;
};

template <class Number>
Spread over(const std::vector<Pair>& pairs, Number number) {
  std::vector<double> values;
  values.reserve(pairs.size());
  for (const Pair& pair : pairs) {
    values.push_back(number(pair));
  }
  return spread_of(values);
}

std::vector<Cell> row(const std::string& name,
                      const std::vector<Pair>& pairs,
                      const Settings& settings,
                      double communication_ns) {
  const auto mbit = [](double bytes, double ns) { return bytes * 8e3 / ns; };
  const auto bound = [&](const Pair& pair) {
    return bound_ns(pair.alone, pair.numbers, settings.link_mbit, settings.config.layers);
  };
  return {
      name,
      over(pairs, [&](const Pair& pair) { return pair.alone.step_ns / communication_ns; }),
      over(pairs, [](const Pair& pair) { return pair.alone.step_ns * 1e-6; }),
      over(pairs, [](const Pair& pair) { return pair.numbers.step_ns * 1e-6; }),
      over(pairs, [&](const Pair& pair) { return bound(pair) * 1e-6; }),
      over(pairs, [&](const Pair& pair) { return pair.numbers.step_ns / bound(pair); }),
      over(pairs,
           [](const Pair& pair) {
             return 100 * (pair.numbers.step_ns - pair.alone.step_ns) / pair.numbers.step_ns;
           }),
      over(pairs,
           [](const Pair& pair) {
             const RankNumbers& numbers = pair.numbers;
             return 100 *
                    (1 - (numbers.trainer_cpu_ns + numbers.communication_cpu_ns) / numbers.step_ns);
           }),
      over(pairs,
           [&](const Pair& pair) {
             return mbit(pair.numbers.gathered_bytes + pair.numbers.reduced_bytes,
                         pair.numbers.step_ns);
           }),
      over(pairs,
           [&](const Pair& pair) {
             return 100 * mbit(pair.numbers.wire_bytes, pair.numbers.step_ns) / settings.link_mbit;
           }),
      over(pairs, [](const Pair& pair) { return pair.numbers.communication_cpu_ns * 1e-6; })};
}

void add_rows(Table& table, const Settings& settings, double ratio, double communication_ns) {
  const std::int64_t batch = batch_for(settings, ratio * communication_ns);
  std::vector<Pair> overlap;
  std::vector<Pair> no_overlap;
  for (int i = 0; i < settings.runs; ++i) {
    for (const Mode mode : {Mode::overlap, Mode::no_overlap}) {
      const RankNumbers alone = run(settings, Mode::compute_only, batch, settings.seconds);
      (mode == Mode::overlap ? overlap : no_overlap)
          .push_back({alone, run(settings, mode, batch, settings.seconds)});
    }
  }
  table.rows.push_back(row("overlap", overlap, settings, communication_ns));
  table.rows.push_back(row("no overlap", no_overlap, settings, communication_ns));
}

Table measured(const Settings& settings) {
  Table table{
      .name = "two_hosts",
      .title = "GPT on two hosts, a link of " + std::to_string(std::lround(settings.link_mbit)) +
               " Mbit/s, " + std::to_string(settings.config.layers) + " blocks of width " +
               std::to_string(settings.config.width) + ", full_shard (median of " +
               std::to_string(settings.runs) + " runs, spread)",
      .columns = {{"communication"},
                  {"ratio", 2},
                  {"compute_ms", 1},
                  {"step_ms", 1},
                  {"bound_ms", 1},
                  {"step_per_bound", 3},
                  {"exposed_percent", 1},
                  {"idle_percent", 1},
                  {"goodput_mbit", 1},
                  {"link_percent", 1},
                  {"comm_cpu_ms", 1}},
      .rows = {},
      .notes = {
          "compute: forward, backward and the update of this rank's part, of both ranks at once, "
          "without "
          "runtime or network, right before. ratio: that over communication alone, its payload at "
          "95.6 % of the rate, which is what TCP leaves of full Ethernet frames.",
          "bound: max(forward, gathers) + max(backward, gathers and reduces) + the last reduce + "
          "what "
          "else a step computes. exposed: (step - compute) / step. idle: of the step, what the "
          "rank's "
          "one core had nothing to do in: exposed, without the processor time of communication.",
          "goodput: payload that a rank sends, per time of a whole step; link: all bytes that its "
          "queue to the link has let through, headers included, of the rate.",
          "comm_cpu: processor time of all threads but the trainer's in a step, the kernel's work "
          "for "
          "TCP in it. It comes from the one core that the rank computes on."}};
  const RankNumbers probe = run(settings, Mode::overlap, 1, std::min(1.0, settings.seconds));
  const double communication =
      transfer_ns(probe.gathered_bytes + probe.reduced_bytes, settings.link_mbit);
  for (const double ratio : settings.ratios) {
    add_rows(table, settings, ratio, communication);
  }
  return table;
}

void run_all(const Settings& settings, const std::string& json) {
  LinkReport report(json);
  const Machine machine = this_machine();
  print(std::cout, machine);
  const Table table = measured(settings);
  print(std::cout, table);
  report.write(machine, settings.link_mbit, table);
}

std::string host_of(const char* variable) {
  const char* const value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): before threads
  return value == nullptr ? "127.0.0.1" : value;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    CLI::App app{
        "A GPT trained on two hosts, on a link of a given rate. As root, with two network "
        "namespaces (Debian: iproute2):\n"
        "  bench/two_hosts_net.sh 200mbit troupe_two_hosts --link-mbit 200"};
    Settings settings;
    std::string json;
    app.add_option("--link-mbit", settings.link_mbit, "the rate of the link in Mbit/s")
        ->check(CLI::PositiveNumber);
    app.add_option("--seconds", settings.seconds, "of each run")->check(CLI::PositiveNumber);
    app.add_option("--runs", settings.runs, "of everything")->check(CLI::PositiveNumber);
    app.add_option("--ratios", settings.ratios, "computation over communication")
        ->check(CLI::PositiveNumber);
    app.add_option("--layers", settings.config.layers, "blocks")->check(CLI::PositiveNumber);
    app.add_option("--width", settings.config.width, "of a block")->check(CLI::PositiveNumber);
    app.add_option("--json", json, "also write everything to this file")->type_name("FILE");
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    }
    for (const char* const variable : {"TROUPE_HOST_A", "TROUPE_HOST_B"}) {
      settings.hosts.push_back(Host::parse(host_of(variable)));
    }
    if (const auto wrong = gpt::validate(settings.config)) {
      std::cerr << "troupe_two_hosts: " << *wrong << "\n";
      return 2;
    }
    run_all(settings, json);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "troupe_two_hosts: " << error.what() << "\n";
    return 1;
  }
}
