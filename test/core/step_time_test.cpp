/// Tests of core/step_time.hpp.
#include "troupe/core/step_time.hpp"

#include "troupe/test/support/random.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace troupe::test {
namespace {

using std::chrono::nanoseconds;

TrainerTime::Time at(std::int64_t time) {
  return TrainerTime::Time(nanoseconds(time));
}
nanoseconds ns(std::int64_t count) {
  return nanoseconds(count);
}

TEST_CASE("what is between uses and no wait is other") {
  TrainerTime time;
  const auto begin = time.read(at(100), ns(0));
  // 100 to 110 other, waits to 130, computes to 170, other to 200.
  time.begin_compute(at(130), ns(20));
  time.end_compute(at(170), ns(20));
  CHECK(between(begin, time.read(at(200), ns(20))) == StepTime{ns(40), ns(20), ns(40)});
}

TEST_CASE("uses that are open at once count once, without the waiting inside") {
  TrainerTime time;
  const auto begin = time.read(at(0), ns(7));
  time.begin_compute(at(10), ns(7));
  time.begin_compute(at(30), ns(17));  // waited 10 in between, for the inner one
  time.end_compute(at(40), ns(17));    // not the one that was opened last: no matter
  time.end_compute(at(60), ns(17));
  CHECK(between(begin, time.read(at(60), ns(17))) == StepTime{ns(40), ns(10), ns(10)});
}

TEST_CASE("a use that is open at the reading counts as far as it has come") {
  TrainerTime time;
  time.begin_compute(at(10), ns(0));
  const auto middle = time.read(at(30), ns(5));
  time.end_compute(at(100), ns(8));
  const auto end = time.read(at(100), ns(8));
  CHECK(between({.time = at(0)}, middle) == StepTime{ns(15), ns(5), ns(10)});
  CHECK(between(middle, end) == StepTime{ns(67), ns(3), ns(0)});
}

TEST_CASE("nothing is said of a step that computed on a worker stream") {
  TrainerTime time;
  const auto first = time.read(at(0), ns(0));
  time.compute_on_stream();
  const auto second = time.read(at(10), ns(3));
  CHECK_FALSE(between(first, second).has_value());
  CHECK(between(second, time.read(at(15), ns(4))) == StepTime{ns(0), ns(1), ns(4)});
}

TEST_CASE("over any sequence the parts are what counting each nanosecond gives") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    TrainerTime time;
    std::int64_t now = 1000;
    std::int64_t waited = 0;
    int open = 0;
    StepTime counted;
    StepTime total;
    auto last = time.read(at(now), ns(waited));
    const auto begin = last;
    for (int i = 0; i < 100; ++i) {
      const auto length = static_cast<std::int64_t>(random.below(50));
      now += length;
      switch (random.below(5)) {
        case 0:
          waited += length;
          counted.exposed += ns(length);
          break;
        case 1: {
          (open > 0 ? counted.compute : counted.other) += ns(length);
          const auto reading = time.read(at(now), ns(waited));
          total += *between(last, reading);
          last = reading;
          break;
        }
        default:
          (open > 0 ? counted.compute : counted.other) += ns(length);
          if (open > 0 && random.below(2) == 0) {
            time.end_compute(at(now), ns(waited));
            --open;
          } else {
            time.begin_compute(at(now), ns(waited));
            ++open;
          }
      }
    }
    const auto end = time.read(at(now), ns(waited));
    total += *between(last, end);
    CHECK(total == counted);
    CHECK(between(begin, end) == counted);
    CHECK(total.total() == ns(now - 1000));
  }
}

}  // namespace
}  // namespace troupe::test
