/// Who decides what happens next in a simulation, and remembers it. A run is a function of the
/// world and of the list of numbers that its chooser gave.
#pragma once

#include "troupe/test/support/random.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace troupe::test {

/// Something that may happen next.
struct Option {
  std::uint64_t id = 0;      ///< the same in every run for what is the same
  std::uint32_t weight = 1;  ///< how likely, against the others
};

class Chooser {
 public:
  Chooser() = default;
  Chooser(const Chooser&) = delete;
  Chooser& operator=(const Chooser&) = delete;
  virtual ~Chooser() = default;

  /// What happens next: an index into `options`, which are not empty. The first is what a patient
  /// reader would expect: the oldest message, the next point of time last.
  virtual std::size_t choose(std::span<const Option> options) = 0;
  /// How long something takes and the like: 0 to count − 1; 0 is the plainest.
  virtual std::size_t draw(std::size_t count) = 0;
  /// What was chosen last has touched something; `alone`: see TouchObserver. Pace::instant only.
  virtual void touched(std::uint64_t /*object*/, bool /*alone*/) {}
};

/// Random, by a seed.
class SeededChooser final : public Chooser {
 public:
  explicit SeededChooser(std::uint64_t seed) : random_(seed) {}

  std::size_t choose(std::span<const Option> options) override {
    std::uint64_t sum = 0;
    for (const Option& option : options) {
      sum += option.weight;
    }
    std::uint64_t at = random_.below(sum);
    std::size_t index = 0;
    while (at >= options[index].weight) {
      at -= options[index++].weight;
    }
    return index;
  }
  std::size_t draw(std::size_t count) override { return random_.below(count); }

 private:
  Random random_;
};

/// A list of numbers given before; zeros behind its end. A number that is too large for the place,
/// since something before it was changed, is taken as the largest one.
class ReplayChooser final : public Chooser {
 public:
  explicit ReplayChooser(std::vector<std::uint16_t> numbers) : numbers_(std::move(numbers)) {}

  std::size_t choose(std::span<const Option> options) override { return next(options.size()); }
  std::size_t draw(std::size_t count) override { return next(count); }

 private:
  std::size_t next(std::size_t count) {
    const std::size_t number = at_ < numbers_.size() ? numbers_[at_] : 0;
    ++at_;
    return std::min(number, count - 1);
  }

  std::vector<std::uint16_t> numbers_;
  std::size_t at_ = 0;
};

}  // namespace troupe::test
