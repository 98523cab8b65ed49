#include "troupe/runtime/report.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string_view>

namespace troupe {

namespace {

/// The unit in which a table of bytes is written, by its largest entry.
struct ByteUnit {
  const char* name;
  double bytes;
};

ByteUnit unit_for(std::int64_t bytes_max) {
  if (bytes_max >= 1'000'000'000) {
    return {"GB", 1e9};
  }
  return bytes_max >= 1'000'000 ? ByteUnit{"MB", 1e6} : ByteUnit{"kB", 1e3};
}

std::string amount(std::int64_t bytes, const ByteUnit& unit) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.3f %s", static_cast<double>(bytes) / unit.bytes,
                unit.name);
  return text.data();
}

/// `name` in the first column; what follows begins in column 24.
std::string named(std::string_view name) {
  constexpr std::size_t width = 24;
  std::string text(name);
  text.resize(std::max(width, text.size() + 1), ' ');
  return text;
}

std::string strategy_text(const Report& report) {
  return named("strategy") + row_of(report.strategy).name + "\n";
}

std::string right_aligned(const std::string& text) {
  constexpr std::size_t width = 13;
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string memory_text(const Report& report) {
  const MemoryReport& own = report.memory;
  const MemoryReport& whole = report.unsharded;
  const ByteUnit unit = unit_for(std::max(own.total(), whole.total()));
  std::string text = named("memory of rank " + std::to_string(report.rank) + " of " +
                           std::to_string(report.world_size)) +
                     right_aligned("sharded") + right_aligned("unsharded") + "\n";
  // Where full buffers stay, main weights of the same dtype are this rank's part of them.
  const bool in_slots = row_of(report.strategy).full_buffer == FullBuffer::stays &&
                        own.main_weights == 0 && whole.main_weights > 0;
  const auto row = [&](const char* name, std::int64_t MemoryReport::* member) {
    text += named(name) + right_aligned(amount(own.*member, unit)) +
            right_aligned(amount(whole.*member, unit)) + "\n";
  };
  row(in_slots ? "  main weights (slots)" : "  main weights", &MemoryReport::main_weights);
  row("  main gradients", &MemoryReport::main_gradients);
  row("  optimizer state", &MemoryReport::optimizer);
  row("  parameter slots", &MemoryReport::parameter_slots);
  row("  gradient slots", &MemoryReport::gradient_slots);
  if (own.gradient_staging > 0) {
    row("  gradient staging", &MemoryReport::gradient_staging);
  }
  if (own.kept_parameters > 0) {
    row("  kept parameters", &MemoryReport::kept_parameters);
  }
  if (own.wide_shard > 0) {
    row("  wide shard", &MemoryReport::wide_shard);
  }
  text += named("  total") + right_aligned(amount(own.total(), unit)) +
          right_aligned(amount(whole.total(), unit)) + "\n";
  text += named("most held in slots") + amount(own.unsharded_peak, unit) +
          " of gathered parameters, " + amount(own.gradients_peak, unit) + " of gradients\n";
  return text;
}

std::string collectives_text(const Report& report) {
  std::string list;
  for (std::size_t op = 0; op < collective_count; ++op) {
    if (report.collectives_last_step[op] > 0) {
      list += (list.empty() ? "" : ", ") + std::to_string(report.collectives_last_step[op]) + " " +
              to_string(static_cast<Collective>(op));
    }
  }
  return named("collectives per step") + (list.empty() ? "none" : list) + "\n";
}

/// "3.000 MB: 1.000 MB all_gather, 2.000 MB reduce_scatter"
std::string sent_text(const Report& report) {
  const auto& sent = report.bytes_sent_last_step;
  const std::uint64_t sum = std::accumulate(sent.begin(), sent.end(), std::uint64_t{0});
  const ByteUnit unit = unit_for(static_cast<std::int64_t>(sum));
  std::string list;
  for (std::size_t op = 0; op < collective_count; ++op) {
    if (sent[op] > 0) {
      list += (list.empty() ? ": " : ", ") + amount(static_cast<std::int64_t>(sent[op]), unit) +
              " " + to_string(static_cast<Collective>(op));
    }
  }
  return named("bytes sent per step") + amount(static_cast<std::int64_t>(sum), unit) + list + "\n";
}

std::string prefetch_text(const ScheduleCounters& schedule) {
  std::string text = named("uses of buckets") + std::to_string(schedule.uses) + " in " +
                     std::to_string(schedule.gathers) +
                     " gathers: " + std::to_string(schedule.prefetch_hits) + " prefetch hits, " +
                     std::to_string(schedule.misses) + " misses, " +
                     std::to_string(schedule.hits - schedule.prefetch_hits) + " still held";
  if (schedule.evicted_unused > 0) {
    text += "; " + std::to_string(schedule.evicted_unused) + " gathers were not used";
  }
  return text + "\n";
}

std::string waited_text(const Report& report) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.3f s",
                std::chrono::duration<double>(report.waited).count());
  return named("trainer waited") + text.data() +
         " for communication, construction and exports included, in " +
         std::to_string(report.steps) + (report.steps == 1 ? " step\n" : " steps\n");
}

std::string duration(std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration<double>(time).count();
  std::array<char, 48> text{};
  if (seconds < 1) {
    std::snprintf(text.data(), text.size(), "%.3f ms", 1e3 * seconds);
  } else {
    std::snprintf(text.data(), text.size(), "%.3f s", seconds);
  }
  return text.data();
}

/// "10.000 ms: 7.000 ms (70 %) compute, 2.000 ms (20 %) exposed communication, …"
std::string split_text(const StepTime& time) {
  const auto part = [&](std::chrono::nanoseconds own) {
    const auto whole = static_cast<double>(std::max<std::int64_t>(time.total().count(), 1));
    std::array<char, 48> percent{};
    std::snprintf(percent.data(), percent.size(), " (%.0f %%)",
                  100 * static_cast<double>(own.count()) / whole);
    return duration(own) + percent.data();
  };
  return duration(time.total()) + ": " + part(time.compute) + " compute, " + part(time.exposed) +
         " exposed communication, " + part(time.other) + " other\n";
}

std::string time_text(const Report& report) {
  const std::string not_known = "not known: it computed on a worker stream\n";
  std::string text;
  if (report.steps > 0) {
    text += named("time of the last step") +
            (report.time_last_step ? split_text(*report.time_last_step) : not_known);
  }
  if (report.steps_timed > 0) {
    text += named("time of " + std::to_string(report.steps_timed) +
                  (report.steps_timed == 1 ? " step" : " steps")) +
            split_text(report.time_steps);
  }
  return text;
}

}  // namespace

std::string to_text(const Report& report) {
  return strategy_text(report) + memory_text(report) + collectives_text(report) +
         sent_text(report) + prefetch_text(report.schedule) + waited_text(report) +
         time_text(report);
}

}  // namespace troupe
