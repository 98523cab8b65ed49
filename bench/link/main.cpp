// How much of a network link collectives use: ours, Gloo's own all-gather, and plain TCP beside
// them.
#include "link_ranks.hpp"
#include "troupe/bench/link_report.hpp"
#include "troupe/bench/machine.hpp"
#include "troupe/bench/table.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace troupe::bench;
using troupe::Collective;
using troupe::DType;

struct Settings {
  std::vector<Host> hosts;
  double link_mbit = 0;  ///< 0: not known
  double seconds = 5;
  std::vector<int> sizes_mib;
  int repetitions = 3;
};

/// Nanoseconds of one, repeated for as long as asked: how often is found out by a few.
double one_ns(const Timed& timed, double seconds) {
  constexpr int few = 4;
  const auto estimate = static_cast<double>(timed(few)) / few;
  const int count = std::max(1, static_cast<int>(std::ceil(seconds * 1e9 / estimate)));
  return static_cast<double>(timed(count)) / count;
}

void add_rows(Table& table, const Settings& settings, int mib) {
  const std::int64_t full_bytes = std::int64_t{mib} << 20;
  const auto ranks = static_cast<std::int64_t>(settings.hosts.size());
  /// What each rank has to send, and to receive.
  const std::int64_t wire_bytes = full_bytes / ranks * (ranks - 1);
  LinkRanks group(settings.hosts, full_bytes);
  const std::vector<std::pair<std::string, Timed>> contestants{
      {"plain TCP, both ways",
       [&](int count) { return plain_tcp(settings.hosts, wire_bytes, count); }},
      {"all_gather",
       [&](int count) { return group.ours(Collective::all_gather, DType::f32, count); }},
      {"reduce_scatter fp32",
       [&](int count) { return group.ours(Collective::reduce_scatter, DType::f32, count); }},
      {"reduce_scatter bf16",
       [&](int count) { return group.ours(Collective::reduce_scatter, DType::bf16, count); }},
      {"Gloo's all_gather", [&](int count) { return group.stock_all_gather(count); }},
  };
  std::vector<std::vector<double>> ms(contestants.size());
  for (int repetition = 0; repetition < settings.repetitions; ++repetition) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      ms[i].push_back(one_ns(contestants[i].second, settings.seconds) * 1e-6);
    }
  }
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    std::vector<double> mbit(ms[i].size());
    std::ranges::transform(ms[i], mbit.begin(), [&](double each) {
      return static_cast<double>(wire_bytes) * 8e-3 / each;
    });
    std::vector<Cell> row{contestants[i].first, static_cast<double>(mib), spread_of(ms[i]),
                          spread_of(mbit)};
    if (settings.link_mbit > 0) {
      row.emplace_back(scaled(spread_of(mbit), 100 / settings.link_mbit));
    }
    table.rows.push_back(std::move(row));
  }
}

void run(const Settings& settings, const std::string& json) {
  LinkReport report(json);
  const Machine machine = this_machine();
  print(std::cout, machine);
  Table table{
      .name = "link",
      .title = "Collectives over TCP between " + std::to_string(settings.hosts.size()) +
               " ranks (median of " + std::to_string(settings.repetitions) + " runs, spread)",
      .columns = {{"what"}, {"full_mib", 0}, {"time_ms", 3}, {"goodput_mbit", 1}},
      .rows = {},
      .notes = {"goodput: payload that each rank sends (and receives) per time; of the "
                "full tensor (ranks - 1) / ranks.",
                "Runs last as long as asked, collective after collective without a pause."}};
  if (settings.link_mbit > 0) {
    table.columns.push_back({"link_percent", 1});
    table.notes.emplace_back(
        "link_percent: of the link's rate, headers included: 1448 of 1514 bytes of a full "
        "Ethernet frame are payload, so 95.6 % is the most.");
  }
  for (const int mib : settings.sizes_mib) {
    add_rows(table, settings, mib);
  }
  print(std::cout, table);
  report.write(machine, settings.link_mbit, table);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    CLI::App app{
        "How much of a network link collectives use. On a link of a given rate, with two network "
        "namespaces (as root; Debian: iproute2):\n"
        "  bench/two_hosts_net.sh 200mbit sh -c 'troupe_link_bench --link-mbit 200 --hosts "
        "$TROUPE_HOST_A $TROUPE_HOST_B'\n"
        "On a machine that others use, chrt -f 10 before the program keeps them out of the "
        "numbers."};
    Settings settings;
    std::vector<std::string> hosts{"127.0.0.1", "127.0.0.1"};
    settings.sizes_mib = {1, 4, 16};
    std::string json;
    app.add_option("--hosts", hosts, "one rank each")->type_name("ADDRESS[@NAMESPACE]");
    app.add_option("--link-mbit", settings.link_mbit, "the rate of the link in Mbit/s");
    app.add_option("--seconds", settings.seconds, "of each run")->check(CLI::PositiveNumber);
    app.add_option("--runs", settings.repetitions, "of everything")->check(CLI::PositiveNumber);
    app.add_option("--mib", settings.sizes_mib, "sizes of the full tensor")
        ->check(CLI::PositiveNumber);
    app.add_option("--json", json, "also write everything to this file")->type_name("FILE");
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    }
    if (hosts.size() < 2) {
      std::cerr << "troupe_link_bench: a link has two ends\n";
      return 2;
    }
    for (const std::string& host : hosts) {
      settings.hosts.push_back(Host::parse(host));
    }
    run(settings, json);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "troupe_link_bench: " << error.what() << "\n";
    return 1;
  }
}
