#include "troupe/runtime/report.hpp"

#include <algorithm>
#include <cstdio>
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
  const auto row = [&](const char* name, std::int64_t MemoryReport::* member) {
    text += named(name) + right_aligned(amount(own.*member, unit)) +
            right_aligned(amount(whole.*member, unit)) + "\n";
  };
  row("  main weights", &MemoryReport::main_weights);
  row("  main gradients", &MemoryReport::main_gradients);
  row("  optimizer state", &MemoryReport::optimizer);
  row("  parameter slots", &MemoryReport::parameter_slots);
  row("  gradient slots", &MemoryReport::gradient_slots);
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
  return named("trainer waited") + text.data() + " for communication, in " +
         std::to_string(report.steps) + (report.steps == 1 ? " step\n" : " steps\n");
}

}  // namespace

std::string to_text(const Report& report) {
  return memory_text(report) + collectives_text(report) + prefetch_text(report.schedule) +
         waited_text(report);
}

}  // namespace troupe
