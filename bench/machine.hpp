/// What the numbers were measured on.
#pragma once

#include "samples.hpp"

#include <ostream>
#include <string>

namespace troupe::bench {

struct Machine {
  std::string cpu;
  int cores = 0;  ///< that this process may run on
  std::string compiler;
  std::string build_type;
  double load_average = 0;  ///< over the last minute, before anything was measured
  Spread clock_ns;          ///< one reading of the clock; contained in every timed call
  Spread wake_us;           ///< from a notification to a parked thread's first look

  /// Others were hardly running.
  bool quiet() const { return load_average <= 0.5; }
};

/// Takes some milliseconds: the last two are measured.
Machine this_machine();

void print(std::ostream& out, const Machine& machine);
void write_json(std::ostream& out, const Machine& machine);

}  // namespace troupe::bench
