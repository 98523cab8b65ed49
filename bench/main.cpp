// What the runtime costs: runs the measurements, prints their tables, writes JSON.
#include "benchmarks.hpp"
#include "machine.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace troupe::bench;

const std::vector<std::pair<std::string, Table (*)(const Effort&)>> measurements{
    {"layer_events", layer_events},       {"event_cost", event_cost}, {"collectives", collectives},
    {"thousand_layers", thousand_layers}, {"store", store_clients},
};

void write_report(std::ostream& out,
                  const Machine& machine,
                  bool quick,
                  const std::vector<Table>& tables) {
  out << "{\"quick\": " << (quick ? "true" : "false") << ",\n \"machine\": ";
  write_json(out, machine);
  out << ",\n \"tables\": [";
  for (std::size_t i = 0; i < tables.size(); ++i) {
    out << (i == 0 ? "\n  " : ",\n  ");
    write_json(out, tables[i]);
  }
  out << "]}\n";
}

int run(bool quick, const std::string& json, const std::vector<std::string>& only) {
  std::ofstream file;
  if (!json.empty()) {
    file.open(json);  // before minutes are spent
    if (!file) {
      std::cerr << "troupe_bench: cannot write " << json << "\n";
      return 1;
    }
  }
  const Machine machine = this_machine();
  print(std::cout, machine);
  const Effort effort{.repetitions = quick ? 1 : 5, .quick = quick};
  std::vector<Table> tables;
  for (const auto& [name, measure] : measurements) {
    if (only.empty() || std::ranges::find(only, name) != only.end()) {
      print(std::cout, tables.emplace_back(measure(effort)));
      std::cout.flush();
    }
  }
  if (json.empty()) {
    return 0;
  }
  write_report(file, machine, quick, tables);
  file.close();
  if (!file) {
    std::cerr << "troupe_bench: could not write all of " << json << "\n";
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    CLI::App app{
        "What Troupe costs: layer events, decisions, in-process collectives, joining a store."};
    bool quick = false;
    std::string json;
    std::vector<std::string> only;
    std::vector<std::string> names(measurements.size());
    std::ranges::transform(measurements, names.begin(),
                           [](const auto& measurement) { return measurement.first; });
    app.add_flag("--quick", quick, "so short that the numbers mean nothing: for tests");
    app.add_option("--json", json, "also write everything to this file")->type_name("FILE");
    app.add_option("--only", only, "run these measurements")
        ->check(CLI::IsMember(names))
        ->type_name("NAME");
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    }
    return run(quick, json, only);
  } catch (const std::exception& error) {
    std::cerr << "troupe_bench: " << error.what() << "\n";
    return 1;
  }
}
