/// Random numbers that are the same everywhere: the standard library's distributions are not.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe::test {

/// SplitMix64: the standard library's distributions differ between libraries.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// 0 to n − 1.
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  bool percent(std::uint64_t chance) { return below(100) < chance; }
  template <class T>
  const T& of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::uint64_t state_;
};

}  // namespace troupe::test
