/// Numbers out of timings: percentiles within one repetition, median and spread over repetitions.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace troupe::bench {

using Nanoseconds = std::int64_t;

inline Nanoseconds now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds{1};
}

/// Keeps the calling thread busy, as a layer that computes on it does; but lets a stream's worker
/// have the core where none is free for it.
void compute_for(Nanoseconds duration);

/// The sample below which `share` (0 to 1) of all lie. Precondition: there is one.
double percentile(std::vector<Nanoseconds> samples, double share);
double mean(const std::vector<Nanoseconds>& samples);

/// One number over the repetitions of a measurement.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};
Spread spread_of(std::vector<double> values);
/// Every number times `factor`, for units.
Spread scaled(Spread spread, double factor);

/// A function's result over several calls.
Spread repeat(int repetitions, const std::function<double()>& measure);

}  // namespace troupe::bench
