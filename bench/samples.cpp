#include "samples.hpp"

#include <algorithm>
#include <numeric>
#include <thread>

namespace troupe::bench {

void compute_for(Nanoseconds duration) {
  const Nanoseconds end = now_ns() + duration;
  while (now_ns() < end) {
    std::this_thread::yield();
  }
}

double percentile(std::vector<Nanoseconds> samples, double share) {
  const auto last = static_cast<double>(samples.size() - 1);
  const auto place = samples.begin() + static_cast<std::ptrdiff_t>(share * last);
  std::ranges::nth_element(samples, place);
  return static_cast<double>(*place);
}

double mean(const std::vector<Nanoseconds>& samples) {
  const Nanoseconds total = std::accumulate(samples.begin(), samples.end(), Nanoseconds{0});
  return static_cast<double>(total) / static_cast<double>(samples.size());
}

Spread spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  return {values[values.size() / 2], values.front(), values.back()};
}

Spread scaled(Spread spread, double factor) {
  return {spread.median * factor, spread.min * factor, spread.max * factor};
}

Spread repeat(int repetitions, const std::function<double()>& measure) {
  std::vector<double> values(static_cast<std::size_t>(repetitions));
  std::ranges::generate(values, measure);
  return spread_of(std::move(values));
}

}  // namespace troupe::bench
