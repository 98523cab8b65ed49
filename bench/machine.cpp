#include "machine.hpp"

#include "table.hpp"
#include "troupe/comm/waiting.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sched.h>
#include <thread>

namespace troupe::bench {

namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      return line.substr(line.find(": ") + 2);
    }
  }
  return "unknown";
}

int cores_allowed() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof(allowed), &allowed) == 0
             ? CPU_COUNT(&allowed)
             : static_cast<int>(std::thread::hardware_concurrency());
}

double load_average() {
  std::array<double, 1> loads{};
  return getloadavg(loads.data(), 1) == 1 ? loads[0] : 0;
}

double clock_reading_ns() {
  constexpr int readings = 100'000;
  const Nanoseconds begun = now_ns();
  Nanoseconds last = begun;
  for (int i = 0; i < readings; ++i) {
    last = now_ns();
  }
  return static_cast<double>(last - begun) / readings;
}

/// Median time from `notify` to the return of a parked thread's `wait`.
double wake_ns() {
  constexpr int wakes = 200;
  FutexWaiter waiter;
  std::atomic<Nanoseconds> sent{0};
  std::vector<Nanoseconds> times;
  std::thread sleeper([&] {
    for (int i = 0; i < wakes; ++i) {
      static_cast<void>(waiter.wait([&] { return sent.load() != 0; }, TimePoint::max()));
      times.push_back(now_ns() - sent.load());
      sent.store(0);
    }
  });
  for (int i = 0; i < wakes; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds{100});  // it parks meanwhile
    sent.store(now_ns());
    waiter.notify();
    while (sent.load() != 0) {
      std::this_thread::yield();
    }
  }
  sleeper.join();
  return percentile(std::move(times), 0.5);
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.load_average = load_average();
  machine.cpu = cpu_model();
  machine.cores = cores_allowed();
#if defined(__clang__)
  machine.compiler = "Clang " __clang_version__;
#else
  machine.compiler = "GNU " __VERSION__;
#endif
  machine.build_type = TROUPE_BUILD_TYPE;
  machine.clock_ns = repeat(5, clock_reading_ns);
  machine.wake_us = scaled(repeat(5, wake_ns), 1e-3);
  return machine;
}

void print(std::ostream& out, const Machine& machine) {
  out << machine.cpu << ", " << machine.cores << " cores; " << machine.compiler << ", "
      << machine.build_type << " build; load average " << machine.load_average << " at the start\n"
      << "clock reading " << machine.clock_ns.median << " ns, wake of a parked thread "
      << machine.wake_us.median << " us\n";
  if (!machine.quiet()) {
    out << "WARNING: the load average is above 0.5: others are running, times are too long\n";
  }
}

void write_json(std::ostream& out, const Machine& machine) {
  const auto text = [&out](const char* name, const std::string& value) {
    out << "\"" << name << "\": ";
    write_json_string(out, value);
    out << ", ";
  };
  const auto number = [&out](const char* name, double value, const char* behind) {
    out << "\"" << name << "\": ";
    write_json_number(out, value);
    out << behind;
  };
  out << "{";
  text("cpu", machine.cpu);
  number("cores", machine.cores, ", ");
  text("compiler", machine.compiler);
  text("build_type", machine.build_type);
  number("load_average", machine.load_average, ", ");
  number("clock_ns", machine.clock_ns.median, ", ");
  number("wake_us", machine.wake_us.median, ", ");
  out << "\"quiet\": " << (machine.quiet() ? "true" : "false") << "}";
}

}  // namespace troupe::bench
