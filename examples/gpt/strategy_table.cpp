#include "strategy_table.hpp"

#include "text.hpp"
#include <troupe/runtime/report.hpp>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace gpt {

namespace {

using troupe::MemoryReport;
using troupe::Report;

std::string row(const std::string& name, const std::vector<std::string>& cells) {
  std::string text;
  for (const std::string& cell : cells) {
    text += formatted("%19s", cell.c_str());
  }
  return line(name, text);
}

std::string megabytes(int64_t bytes) {
  return formatted("%.3f MB", static_cast<double>(bytes) * 1e-6);
}

int64_t bytes_sent(const Report& report) {
  return std::accumulate(
      report.bytes_sent_last_step.begin(), report.bytes_sent_last_step.end(), int64_t{0},
      [](int64_t sum, uint64_t bytes) { return sum + static_cast<int64_t>(bytes); });
}

/// Of the rank that has most.
template <class Measure>
const Report& largest(const ShardedRun& run, Measure measure) {
  return *std::ranges::max_element(run.reports, {}, measure);
}

std::string memory_rows(std::span<const StrategyRun> runs) {
  std::vector<const Report*> reports;
  reports.reserve(runs.size());
  for (const StrategyRun& each : runs) {
    reports.push_back(
        &largest(each.run, [](const Report& report) { return report.memory.total(); }));
  }
  const MemoryReport& unsharded = reports.front()->unsharded;
  const auto memory_row = [&](const char* name, auto bytes) {
    std::vector<std::string> cells;
    cells.reserve(reports.size() + 1);
    for (const Report* report : reports) {
      cells.push_back(megabytes(bytes(report->memory)));
    }
    cells.push_back(megabytes(bytes(unsharded)));
    return row(name, cells);
  };
  const auto of = [](int64_t MemoryReport::* member) {
    return [member](const MemoryReport& memory) { return memory.*member; };
  };
  return std::string("memory of a rank\n") +
         memory_row("  main weights", of(&MemoryReport::main_weights)) +
         memory_row("  main gradients", of(&MemoryReport::main_gradients)) +
         memory_row("  optimizer state", of(&MemoryReport::optimizer)) +
         memory_row("  parameter buffers", of(&MemoryReport::parameter_slots)) +
         memory_row("  gradient buffers", of(&MemoryReport::gradient_slots)) +
         memory_row("  total", [](const MemoryReport& memory) { return memory.total(); });
}

std::string collective_rows(std::span<const StrategyRun> runs) {
  std::string text = "collectives per step\n";
  for (size_t op = 0; op < troupe::collective_count; ++op) {
    std::vector<std::string> cells;
    bool any = false;
    for (const StrategyRun& each : runs) {
      const uint64_t count = each.run.reports.front().collectives_last_step[op];
      cells.push_back(grouped(static_cast<int64_t>(count)));
      any = any || count > 0;
    }
    if (any) {
      text += row(std::string("  ") + to_string(static_cast<troupe::Collective>(op)), cells);
    }
  }
  std::vector<std::string> cells;
  cells.reserve(runs.size());
  for (const StrategyRun& each : runs) {
    cells.push_back(megabytes(bytes_sent(largest(each.run, bytes_sent))));
  }
  return text + row("bytes sent per step", cells);
}

std::string time_rows(std::span<const StrategyRun> runs) {
  std::vector<std::string> medians;
  std::vector<std::string> waits;
  for (const StrategyRun& each : runs) {
    std::vector<Seconds> times;
    times.reserve(each.run.steps.size());
    for (const StepRecord& step : each.run.steps) {
      times.push_back(step.time);
    }
    std::ranges::sort(times);
    medians.push_back(formatted("%.1f ms", 1e3 * times[times.size() / 2].count()));
    const Seconds waited =
        largest(each.run, [](const Report& report) { return report.waited; }).waited;
    waits.push_back(formatted("%.3f s", waited.count()));
  }
  return row("step time, median", medians) + row("waited, at most", waits);
}

std::string equality_rows(std::span<const StrategyRun> runs) {
  std::vector<std::string> parameters;
  std::vector<std::string> losses;
  std::string differences;
  for (const StrategyRun& each : runs) {
    if (!each.comparison) {
      parameters.emplace_back("not compared");
      losses.emplace_back("not compared");
      continue;
    }
    const Comparison& comparison = *each.comparison;
    parameters.emplace_back(comparison.numel_different == 0 ? "all bitwise equal" : "DIFFERENT");
    losses.emplace_back(comparison.losses_different == 0 ? "all bitwise equal" : "DIFFERENT");
    if (!comparison.equal()) {
      differences += line(troupe::row_of(each.strategy).name, "differs:") + to_text(comparison);
    }
  }
  return row("final parameters", parameters) + row("losses", losses) + differences;
}

}  // namespace

std::string strategy_table(std::span<const StrategyRun> runs) {
  std::vector<std::string> names;
  names.reserve(runs.size() + 1);
  for (const StrategyRun& each : runs) {
    names.emplace_back(troupe::row_of(each.strategy).name);
  }
  names.emplace_back("unsharded");
  return row("strategies", names) + memory_rows(runs) + collective_rows(runs) + time_rows(runs) +
         equality_rows(runs) +
         line("", "memory: the rank that holds most; bytes: the rank that sends most; where full") +
         line("", "buffers stay, main weights of fp32 parameters lie in the parameter buffers;") +
         line("", "one all_gather a step is the trainer's own, for the loss");
}

}  // namespace gpt
