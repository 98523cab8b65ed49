/// Freezing and unfreezing between steps: everything is planned anew, and weights, optimizer state
/// and counts move along.
#include "troupe/test/support/checkpoints.hpp"
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

namespace troupe::test {
namespace {

/// AdamW as its header states it, for one parameter whose gradient is the same in every element.
struct AdamReference {
  std::vector<float> p;
  std::vector<float> m;
  std::vector<float> v;
  std::uint64_t steps = 0;

  void step(float g, const AdamWOptions& options) {
    ++steps;
    const auto t = static_cast<double>(steps);
    const auto c1 = static_cast<float>(1.0 - std::pow(static_cast<double>(options.beta1), t));
    const auto c2 = static_cast<float>(1.0 - std::pow(static_cast<double>(options.beta2), t));
    for (std::size_t i = 0; i < p.size(); ++i) {
      m[i] = options.beta1 * m[i] + (1.0F - options.beta1) * g;
      v[i] = options.beta2 * v[i] + (1.0F - options.beta2) * (g * g);
      const float direction = (m[i] / c1) / (std::sqrt(v[i] / c2) + options.epsilon);
      p[i] = p[i] - options.learning_rate * (direction + options.weight_decay * p[i]);
    }
  }
};

/// A trainer of units L0, L1, … with the gradient (rank + 1)(id + 1) in every element.
class Freezer {
 public:
  Freezer(World& world, Findings& findings, const Model& model, const Options& options)
      : world_(world), findings_(findings), runtime(world, model, options) {
    for (const Parameter& parameter : model.parameters()) {
      const auto numel = static_cast<std::size_t>(parameter.numel);
      AdamReference& right = reference[parameter.full_name];
      for (std::size_t i = 0; i < numel; ++i) {
        right.p.push_back(static_cast<float>(parameter.id) + static_cast<float>(i) / 1024.0F);
      }
      right.m.resize(numel);
      right.v.resize(numel);
    }
    runtime.initialize([&](ParameterView view) {
      std::ranges::copy(reference.at(std::string(view.name)).p, view.data.begin());
    });
  }

  void step() {
    {
      const auto micro_batch = runtime.micro_batch();
      const auto units = static_cast<UnitId>(runtime.model().units().size());
      for (UnitId unit = 0; unit < units; ++unit) {
        read(runtime.forward(unit), unit);
      }
      for (UnitId unit = units; unit-- > 0;) {
        const Use use = runtime.backward(unit);
        read(use, unit);
        for (const UnitParameter& each : runtime.model().units()[unit].parameters) {
          const Parameter& parameter = runtime.model().parameters()[each.parameter];
          if (parameter.spec.trainable) {
            std::ranges::fill(use.gradient(each.name).as<float>(),
                              d4_gradient(world_.rank(), parameter.id));
          }
        }
      }
    }
    runtime.finish_gradients();
    optimizer.step(runtime);
    for (const Parameter& parameter : runtime.model().parameters()) {
      if (parameter.spec.trainable) {
        reference.at(parameter.full_name)
            .step(d4_gradient_sum(world_.size(), parameter.id) / static_cast<float>(world_.size()),
                  adamw);
      }
    }
  }
  void set_trainable(const std::vector<std::string>& names, bool trainable) {
    runtime.set_trainable(names, trainable);
    for (const std::string& name : names) {
      if (!trainable) {
        AdamReference& right = reference.at(name);
        std::ranges::fill(right.m, 0.0F);
        std::ranges::fill(right.v, 0.0F);
        right.steps = 0;
      }
    }
  }
  void expect_reference() {
    for (const auto& [name, right] : reference) {
      findings_.expect(runtime.full_parameter(name) == right.p, name + " is not the reference's");
      const ParameterId id = runtime.model().parameter(name);
      findings_.equal(runtime.counts("adamw.step")[id], right.steps, "steps of " + name);
    }
  }

 private:
  void read(const Use& use, UnitId unit) {
    for (const UnitParameter& each : runtime.model().units()[unit].parameters) {
      const std::string& name = runtime.model().parameters()[each.parameter].full_name;
      findings_.expect(std::ranges::equal(use[each.name].as<float>(), reference.at(name).p),
                       "a use reads other values of " + name);
    }
  }

  World& world_;
  Findings& findings_;

 public:
  const AdamWOptions adamw{.learning_rate = 0.1F};
  Runtime runtime;
  AdamW optimizer{adamw};
  std::map<std::string, AdamReference> reference;
};

/// One unit of which only the middle parameter is frozen, and two more; odd sizes, and none at all.
Model partly_frozen() {
  Model model;
  const UnitId first = model.add_unit("L0");
  model.add_parameter(first, {.name = "a", .shape = {341}});
  model.add_parameter(first, {.name = "b", .shape = {341}, .trainable = false});
  model.add_parameter(first, {.name = "c", .shape = {342}});
  const UnitId second = model.add_unit("L1");
  model.add_parameter(second, {.name = "one", .shape = {}, .trainable = false});
  model.add_parameter(second, {.name = "none", .shape = {0}});
  model.add_parameter(model.add_unit("L2"), {.name = "w", .shape = {100}, .trainable = false});
  return model;
}

TEST_CASE("S23: a parameter unfrozen before step 5 moves as in the reference from then on") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    LaunchLog launches(4);
    Options options = variant.options;
    options.slots.reset();  // every plan chooses its own
    options.gradient_slots.reset();
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                Freezer trainer(world, findings, partly_frozen(), options);
                const std::vector<float> before = trainer.reference.at("L0.b").p;
                for (int step = 1; step <= 8; ++step) {
                  if (step == 5) {
                    findings.expect(trainer.runtime.full_parameter("L0.b") == before,
                                    "L0.b has moved while it was frozen");
                    trainer.set_trainable({"L0.b", "L1.one"}, true);
                  }
                  if (step == 7) {
                    trainer.set_trainable({"L0.a"}, false);
                  }
                  if (step == 8) {
                    trainer.set_trainable({"L0.a", "L2.w"}, true);
                  }
                  trainer.step();
                  trainer.expect_reference();
                }
                findings.equal(trainer.runtime.steps(), std::uint64_t{8}, "steps");
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
  }
}

TEST_CASE("unfreezing on any number of ranks") {
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    for (const int ranks : {1, 2, 3, 7}) {
      CAPTURE(ranks);
      Options options;
      options.strategy = strategy;
      CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
              Freezer trainer(world, findings, partly_frozen(), options);
              trainer.step();
              trainer.set_trainable({"L2.w", "L0.b"}, true);
              trainer.step();
              trainer.set_trainable({"L2.w", "L0.a", "L0.b", "L0.c", "L1.none"}, false);
              trainer.set_trainable({"L0.a", "L2.w"}, true);
              trainer.step();
              trainer.expect_reference();
            }) == "");
    }
  }
}

TEST_CASE(
    "plans one after the other, without a step between them, where some ranks have no shard") {
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    for (const int ranks : {2, 4, 7}) {
      CAPTURE(ranks);
      Options options;
      options.strategy = strategy;
      options.alignment_numel = 1;
      CHECK(on_ranks(ranks, [&](World& world, Findings& findings) {
              Freezer trainer(world, findings, partly_frozen(), options);
              trainer.set_trainable({"L1.one"}, true);
              trainer.step();
              trainer.set_trainable({"L0.a"}, false);
              trainer.set_trainable({"L0.b", "L2.w"}, true);
              trainer.set_trainable({"L0.c"}, false);
              trainer.step();
              trainer.expect_reference();
            }) == "");
    }
  }
}

TEST_CASE("memory follows the plan: a frozen model holds no gradients and no optimizer state") {
  CHECK(on_ranks(2, [](World& world, Findings& findings) {
          Freezer trainer(world, findings, partly_frozen(), {});
          trainer.step();
          const MemoryReport before = trainer.runtime.report().memory;
          trainer.set_trainable({"L0.b"}, true);
          trainer.step();
          trainer.set_trainable({"L0.b"}, false);
          const MemoryReport after = trainer.runtime.report().memory;
          findings.equal(after.total(), before.total(), "bytes after freezing again");
          const DeviceCounters& counters = world.device().counters();
          std::int64_t held = 0;
          for (const auto& bytes : counters.bytes) {
            held += bytes.load();
          }
          findings.equal(held, after.total(), "bytes of the device");
          trainer.set_trainable({"L0.a", "L0.c", "L1.none"}, false);
          const MemoryReport frozen = trainer.runtime.report().memory;
          findings.equal(frozen.optimizer, 0, "optimizer bytes of a frozen model");
          findings.equal(frozen.gradient_slots + frozen.main_gradients, 0, "gradient bytes");
        }) == "");
}

TEST_CASE("a save that is not finished survives a new plan, with the values from before") {
  TestFolder folder;
  CHECK(on_ranks(3, [&](World& world, Findings& findings) {
          Freezer trainer(world, findings, partly_frozen(), {});
          trainer.step();
          const std::vector<float> before = trainer.reference.at("L0.a").p;
          AsyncSave save = save_async(trainer.runtime, folder.path());
          trainer.set_trainable({"L0.b"}, true);
          trainer.step();
          save.finish();
          Runtime other(world, partly_frozen(), {});
          const LoadedCheckpoint loaded = load(other, folder.path());
          findings.equal(loaded.step, std::uint64_t{1}, "step");
          findings.expect(other.full_parameter("L0.a") == before, "L0.a is of another step");
        }) == "");
}

TEST_CASE("planning anew inside a step, or of a parameter that is not there, changes nothing") {
  CHECK(on_ranks(2, [](World& world, Findings& findings) {
          Freezer trainer(world, findings, partly_frozen(), {});
          Runtime& runtime = trainer.runtime;
          const auto refused = [&](const char* where) {
            const std::string text = std::string("Runtime::set_trainable was called ") + where +
                                     "; expected between steps, behind the update";
            expect_refused(findings, where, {text.c_str()},
                           [&] { runtime.set_trainable({"L0.b"}, true); });
          };
          {
            const auto micro_batch = runtime.micro_batch();
            refused("while a scope is open");
            {
              const Use use = runtime.forward(0);
              refused("while a scope is open");
            }
          }
          refused("before finish_gradients");
          runtime.finish_gradients();
          {
            const Update update = runtime.update();
            refused("inside an update");
          }
          {
            const auto eval = runtime.eval();
            refused("while a scope is open");
          }
          expect_refused(
              findings, "unknown", {"L9.w"}, [&] { runtime.set_trainable({"L9.w"}, true); },
              ErrorCode::bad_configuration);
          findings.expect(!runtime.model().parameters()[1].spec.trainable, "the model has changed");
          runtime.set_trainable({"L0.b"}, true);
          trainer.step();
          trainer.expect_reference();
        }) == "");
}

}  // namespace
}  // namespace troupe::test
