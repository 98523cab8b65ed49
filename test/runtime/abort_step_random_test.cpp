/// Steps given up at random points by random ranks, with random delays, again and again.
///
/// A failing seed is printed; TROUPE_ABORT_SEED=<seed> runs it alone, TROUPE_ABORT_SEEDS=<n> runs
/// more of them.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/giving_up.hpp"
#include "troupe/test/support/random.hpp"
#include "troupe/test/support/stepped_world.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <thread>

namespace troupe::test {
namespace {

struct Round {
  explicit Round(std::uint64_t seed) {
    Random random(seed);
    ranks = std::array{1, 2, 3, 4, 7}[random.below(5)];
    std::vector<D4Variant> all = d4_variants();
    do {
      variant = all[random.below(all.size())];
    } while (ranks % std::max(variant.options.mesh.replicate, 1) != 0 ||
             ranks % std::max(variant.options.regather_group_size, 1) != 0);
    numel = 16 + static_cast<std::int64_t>(random.below(2000));
    worker = random.percent(40);
  }

  int ranks = 1;
  D4Variant variant{};
  std::int64_t numel = 16;
  bool worker = false;
};

/// Every rank draws from a source of its own: whether it gives up does not depend on the others.
class Whim {
 public:
  Whim(std::uint64_t seed, int rank, int ranks)
      : random_(seed * 1000 + static_cast<std::uint64_t>(rank)),
        percent_(static_cast<std::uint32_t>(6 / ranks + 1)) {}

  void operator()(Place place) {
    if (delays && random_.percent(20)) {
      std::this_thread::sleep_for(std::chrono::microseconds{random_.below(1000)});
    }
    if (random_.percent(percent_) && place != Place::behind_finish_gradients) {
      throw GivesUp();
    }
  }
  bool delays = true;

 private:
  Random random_;
  std::uint32_t percent_;
};

/// Until three steps are done; returns how many were given up.
int train(D4Trainer& trainer, Whim& whim) {
  int given_up = 0;
  for (int done = 0; done < 3;) {
    if (try_step(trainer, [&](Place place) { whim(place); })) {
      ++done;
    } else {
      ++given_up;
    }
  }
  trainer.findings.equal(trainer.runtime.steps(), std::uint64_t{3}, "steps");
  return given_up;
}

int check_seed(std::uint64_t seed) {
  const Round round(seed);
  CAPTURE(seed);
  CAPTURE(round.variant.name);
  const Model model = d4_model(4, round.numel);
  Findings findings;
  std::atomic<int> given_up{0};
  const Outcome outcome = outcome_of(round.ranks, [&](World& world) {
    D4Trainer trainer(world, findings, model, round.variant.options);
    trainer.stream = round.worker ? &world.host_device().create_host_stream("compute") : nullptr;
    Whim whim(seed, world.rank(), world.size());
    given_up += train(trainer, whim);
    trainer.expect_oracle();
  });
  CHECK(findings.text() == "");
  CHECK(outcome.text() == "");
  CHECK(given_up.load() % round.ranks == 0);
  return given_up.load() / round.ranks;
}

TEST_CASE("random steps given up with random delays") {
  if (const char* one = std::getenv("TROUPE_ABORT_SEED"); one != nullptr) {
    check_seed(std::strtoull(one, nullptr, 10));
    return;
  }
  const char* more = std::getenv("TROUPE_ABORT_SEEDS");
  const std::uint64_t seeds = more != nullptr ? std::strtoull(more, nullptr, 10) : 300;
  int given_up = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    given_up += check_seed(seed);
  }
  CHECK(given_up > static_cast<int>(seeds) / 2);
}

TEST_CASE("every order of messages on one thread: steps given up, by seeds") {
  int given_up = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const int ranks = std::array{1, 2, 3, 4}[seed % 4];
    const Model model = d4_model(4, 30);
    Findings findings;
    SteppedWorld stepped(ranks, seed);
    stepped.run([&](World& world) {
      D4Trainer trainer(world, findings, model, d4_options());
      Whim whim(seed, world.rank(), world.size());
      whim.delays = false;
      given_up += train(trainer, whim);
      trainer.expect_oracle();
    });
    CHECK(findings.text() == "");
    for (const std::string& error : stepped.errors) {
      CHECK(error == "");
    }
  }
  CHECK(given_up > 60);
}

}  // namespace
}  // namespace troupe::test
