/// `Runtime::abort_step` between processes: at every kind of place, by every rank in turn.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/giving_up.hpp"
#include "troupe/test/support/joined_ranks.hpp"

#include <doctest/doctest.h>

#include <latch>
#include <stdexcept>
#include <string>

namespace troupe::test {
namespace {

/// Each place once, each time by the next rank, and a whole step behind each.
void train(World& world, Findings& findings, const Model& model, const Options& options) {
  D4Trainer trainer(world, findings, model, options);
  for (std::size_t index = 0; index < place_count; ++index) {
    const auto place = static_cast<Place>(index);
    const bool mine = static_cast<int>(index) % world.size() == world.rank();
    const bool done = try_step(trainer, [&](Place at) {
      if (at == place && mine) {
        throw GivesUp();
      }
    });
    findings.expect(!done, "place " + std::to_string(index) + " is not given up");
    findings.equal(trainer.runtime.steps(), index, "steps, with one given up");
    findings.expect(try_step(trainer, [](Place) {}), "the next step fails");
    findings.equal(trainer.runtime.steps(), index + 1, "steps");
  }
  trainer.expect_oracle();
}

TEST_CASE("a step given up at any place leaves no trace, with every strategy") {
  const std::vector<D4Variant> variants{
      {"full_shard", d4_options()},
      {"sharded_optimizer", {.strategy = Strategy::sharded_optimizer}},
      {"owner_broadcast", {.strategy = Strategy::owner_broadcast}},
      {"full_shard, two replicas", {.mesh = {.replicate = 2}, .slots = 2, .gradient_slots = 2}},
  };
  const Model model = d4_model(4, 100);
  for (const D4Variant& variant : variants) {
    for (const int ranks : {1, 2, 3, 4}) {
      if (ranks % std::max(variant.options.mesh.replicate, 1) != 0) {
        continue;
      }
      CAPTURE(std::string(variant.name));
      CAPTURE(ranks);
      Findings findings;
      const JoinedOutcome outcome = JoinedRanks{}.run(
          ranks, [&](World& world) { train(world, findings, model, variant.options); });
      CHECK(findings.text() == "");
      for (const auto& failure : outcome.failures) {
        CHECK_MESSAGE(!failure, failure->text);
      }
    }
  }
}

TEST_CASE("a world whose steps are given up again and again does not fill the store") {
  StoreServerOptions small;
  small.limits.total_bytes = std::size_t{256} << 10;
  small.limits.value_bytes = std::size_t{64} << 10;
  const auto server = value_or_throw(StoreServer::start(small));
  JoinedRanks joined;
  joined.change = [&](JoinOptions& join, WorldOptions&) {
    join.store_port = server->address().port;
  };
  const Model model = d4_model(4, 100);
  Findings findings;
  const JoinedOutcome outcome = joined.run(3, [&](World& world) {
    D4Trainer trainer(world, findings, model, d4_options());
    for (int round = 0; round < 100; ++round) {
      const bool mine = round % 3 == world.rank();
      const bool done = try_step(trainer, [&](Place at) {
        if (mine && at == Place::behind_the_last_backward) {
          throw GivesUp();
        }
      });
      findings.expect(!done, "round " + std::to_string(round) + " is not given up");
    }
    findings.expect(try_step(trainer, [](Place) {}), "the last step fails");
  });
  CHECK(findings.text() == "");
  for (const auto& failure : outcome.failures) {
    CHECK_MESSAGE(!failure, failure->text);
  }
}

TEST_CASE("a rank that does not come to give up the step is named on all") {
  const Model model = d4_model(4, 100);
  Findings findings;
  const JoinedRanks joined{.timeout = std::chrono::milliseconds{300}};
  const JoinedOutcome outcome = joined.run(3, [&](World& world) {
    D4Trainer trainer(world, findings, model, d4_options());
    trainer.step();
    if (world.rank() == 1) {
      while (!world.context().actors().failed()) {
        std::this_thread::sleep_for(std::chrono::milliseconds{5});
      }
      std::this_thread::sleep_for(std::chrono::seconds{4});
    }
    trainer.runtime.abort_step("bad batch");
  });
  for (const auto& failure : outcome.failures) {
    REQUIRE(failure);
    CHECK(failure->text == outcome.failures[0]->text);
    CHECK(failure->code == ErrorCode::timeout);
    CHECK(failure->rank == 1);
    CHECK(failure->text.find(" ms for rank 1 to give up the step, too (Runtime::abort_step); what "
                             "failed first: rank ") != std::string::npos);
  }
}

TEST_CASE("a rank that has left is not waited for to give up the step") {
  const Model model = d4_model(4, 100);
  Findings findings;
  std::latch trained(3);  // nobody hears of the failure inside of its step
  const JoinedOutcome outcome = JoinedRanks{}.run(3, [&](World& world) {
    D4Trainer trainer(world, findings, model, d4_options());
    trainer.step();
    trained.arrive_and_wait();
    if (world.rank() == 1) {
      throw std::runtime_error("cannot go on");
    }
    trainer.runtime.abort_step("bad batch");
  });
  REQUIRE(outcome.failures[1]);  // with what had failed when it left
  for (const auto& failure : {outcome.failures[0], outcome.failures[2]}) {
    REQUIRE(failure);
    CHECK(failure->rank == 1);
    CHECK(failure->text.find(
              "rank 1 has left the world by an exception; it did not come to give up the step") ==
          0);
  }
}

}  // namespace
}  // namespace troupe::test
