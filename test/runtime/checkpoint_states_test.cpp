/// Which optimizer states and counts a checkpoint brings back.
#include "troupe/test/support/checkpoints.hpp"

#include <doctest/doctest.h>

#include <array>

namespace troupe::test {
namespace {

/// Units of one parameter each.
Model flat_model(const std::vector<std::int64_t>& numels) {
  Model model;
  for (std::size_t i = 0; i < numels.size(); ++i) {
    model.add_parameter(model.add_unit("u" + std::to_string(i)),
                        {.name = "w", .shape = {numels[i]}});
  }
  return model;
}

TEST_CASE("another optimizer's states and counts of some parameters come back by name") {
  const Model model = flat_model({10, 20, 30});
  TestFolder folder;
  WholeState saved;
  const auto first = [](const Parameter& parameter) { return parameter.full_name == "u0.w"; };
  const auto step = [&](Runtime& runtime, World& world, int index, Sgd& sgd, AdamW& adamw) {
    ToyTrainer{.runtime = runtime, .rank = world.rank()}.step(plain_step(3, 1), index);
    Update update = runtime.update();
    sgd.step(update);
    adamw.step(update);
  };
  const SgdOptions sgd_options{
      .momentum = 0.9F, .groups = {{.parameters = first}}, .groups_only = true};
  const AdamWOptions adamw_options{
      .groups = {{.parameters = [&](const Parameter& each) { return !first(each); }}},
      .groups_only = true};
  CHECK(with_runtime(3, model, {}, [&](Runtime& runtime, World& world, Findings&) {
          ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
          Sgd sgd(sgd_options);
          AdamW adamw(adamw_options);
          step(runtime, world, 0, sgd, adamw);
          step(runtime, world, 1, sgd, adamw);
          save(runtime, folder.path());
          saved.add(runtime);
        }) == "");
  CHECK(saved.tensors() == 3 + 1 + 2 * 2);
  WholeState loaded;
  CHECK(with_runtime(2, model, {}, [&](Runtime& runtime, World& world, Findings& findings) {
          load(runtime, folder.path());
          loaded.add(runtime);
          findings.equal(runtime.counts("sgd.step")[0], std::uint64_t{2}, "count of sgd");
          findings.equal(runtime.counts("adamw.step")[0], std::uint64_t{0}, "count of adamw");
          findings.equal(runtime.counts("adamw.step")[2], std::uint64_t{2}, "count of adamw");
          Sgd sgd(sgd_options);
          AdamW adamw(adamw_options);
          step(runtime, world, 2, sgd, adamw);
          findings.equal(runtime.counts("adamw.step")[2], std::uint64_t{3}, "count of adamw");
          findings.equal(runtime.steps(), std::uint64_t{3}, "steps");
        }) == "");
  CHECK(saved.difference(loaded) == "");
}

TEST_CASE("what is frozen now gets no state, what was frozen begins with zeros") {
  const auto model = [](bool first_trains) {
    Model made;
    const UnitId unit = made.add_unit("u");
    made.add_parameter(unit, {.name = "a", .shape = {10}, .trainable = first_trains});
    made.add_parameter(unit, {.name = "b", .shape = {20}, .trainable = !first_trains});
    return made;
  };
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::sharded_optimizer, Strategy::owner_broadcast}) {
    CAPTURE(row_of(strategy).name);
    TestFolder folder;
    std::array<WholeState, 2> states;
    for (const bool first_trains : {true, false}) {
      CHECK(with_runtime(3, model(first_trains), {.strategy = strategy},
                         [&](Runtime& runtime, World& world, Findings& findings) {
                           AdamW adamw;
                           if (first_trains) {
                             ToyTrainer{.runtime = runtime, .rank = world.rank()}.initialize();
                             toy_step(runtime, world.rank(), 0, adamw);
                             save(runtime, folder.path());
                           } else {
                             load(runtime, folder.path());
                             findings.equal(runtime.counts("adamw.step")[0], std::uint64_t{0},
                                            "count of what is frozen");
                           }
                           states[first_trains ? 0 : 1].add(runtime);
                           toy_step(runtime, world.rank(), 1, adamw);
                           if (!first_trains) {
                             findings.equal(runtime.counts("adamw.step")[1], std::uint64_t{1},
                                            "count of what is unfrozen");
                           }
                         }) == "");
    }
    CHECK(states[0].tensors() == 2 + 2);
    CHECK(states[1].tensors() == 2);
    CHECK(states[0].values("weights/u.a") == states[1].values("weights/u.a"));
    CHECK(states[0].values("weights/u.b") == states[1].values("weights/u.b"));
  }
}

}  // namespace
}  // namespace troupe::test
