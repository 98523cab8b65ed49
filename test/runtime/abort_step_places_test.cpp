/// A step given up at every kind of place, by every rank in turn, under every strategy and variant:
/// what follows is as if its batch had never been there.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/giving_up.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

bool runs_on(const Options& options, int ranks) {
  const int parts = std::max(options.mesh.replicate, 1) * std::max(options.regather_group_size, 1);
  return ranks % parts == 0;
}

/// Each place once, each time by the next rank, and a whole step behind each.
void train(
    World& world, Findings& findings, const Model& model, const Options& options, bool worker) {
  D4Trainer trainer(world, findings, model, options);
  trainer.stream = worker ? &world.host_device().create_host_stream("compute") : nullptr;
  for (std::size_t index = 0; index < place_count; ++index) {
    const auto place = static_cast<Place>(index);
    const bool mine = static_cast<int>(index) % world.size() == world.rank();
    const bool done = try_step(trainer, [&](Place at) {
      if (at == place && mine) {
        throw GivesUp();
      }
    });
    findings.expect(!done, "place " + std::to_string(index) + " is not given up");
    findings.expect(!trainer.runtime.gradients_finished(), "gradients are finished");
    findings.equal(trainer.runtime.steps(), index, "steps, with one given up");
    if (place == Place::in_a_backward) {
      trainer.expect_oracle();  // gatherable at once
    }
    findings.expect(try_step(trainer, [](Place) {}), "the next step fails");
    findings.equal(trainer.runtime.steps(), index + 1, "steps");
    findings.equal(trainer.runtime.version(0), index + 2, "updates");
  }
  trainer.expect_oracle();
}

void check_variant(const D4Variant& variant, int ranks, bool worker) {
  CAPTURE(variant.name);
  CAPTURE(variant.options.overlap);
  CAPTURE(ranks);
  CAPTURE(worker);
  const Model model = d4_model(4, 100);
  Findings findings;
  const Outcome outcome = outcome_of(
      ranks, [&](World& world) { train(world, findings, model, variant.options, worker); });
  CHECK(findings.text() == "");
  CHECK(outcome.text() == "");
  for (const std::string& heard : outcome.heard) {
    CHECK(heard == "");
  }
}

TEST_CASE("a step given up at any place leaves no trace, under every strategy") {
  for (const D4Variant& variant : d4_variants()) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      if (runs_on(variant.options, ranks)) {
        check_variant(variant, ranks, false);
      }
    }
  }
}

TEST_CASE("the same on worker streams") {
  for (const D4Variant& variant : d4_variants()) {
    for (const int ranks : {2, 4}) {
      check_variant(variant, ranks, true);
    }
  }
}

}  // namespace
}  // namespace troupe::test
