/// Scenarios about parameters of layers around other layers, under every strategy: a use waits for
/// its own parameters, and for no others.
#include "troupe/test/support/d4_strategies.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

namespace troupe::test {
namespace {

/// A stem, a block with parameters of its own around a layer, a head.
Model nested_model() {
  Model model;
  const auto add = [&](const char* name, UnitId parent, std::initializer_list<const char*> names) {
    const UnitId unit = model.add_unit(name, parent);
    for (const char* parameter : names) {
      model.add_parameter(unit, {.name = parameter, .shape = {256}});
    }
    return unit;
  };
  add("stem", no_unit, {"w"});
  add("layer", add("block", no_unit, {"scale", "shift"}), {"w"});
  add("head", no_unit, {"w"});
  return model;
}

/// Uses all units of the nested model in one direction; `begun` is told of each as it is there.
void use_nested(D4Trainer& trainer, bool backward, const std::function<void(UnitId)>& begun) {
  const auto use = [&](UnitId unit, const std::function<void()>& inner) {
    const Use open = backward ? trainer.runtime.backward(unit) : trainer.runtime.forward(unit);
    begun(unit);
    trainer.read(open, unit);
    inner();
    trainer.read(open, unit);
    if (backward) {
      trainer.contribute(open, unit, 1.0F);
    }
  };
  const auto nothing = [] {};
  const auto block = [&] { use(1, [&] { use(2, nothing); }); };
  use(backward ? 3 : 0, nothing);
  block();
  use(backward ? 0 : 3, nothing);
}

TEST_CASE("S20: a parameter of a layer around others is there before it is used, in every step") {
  constexpr int steps = 4;
  for (const D4Variant& variant : d4_variants()) {
    Options options = variant.options;
    if (!options.keep_gathered.empty()) {
      options.keep_gathered = {"block"};
    }
    if (options.slots) {
      options.slots = 3;
    }
    options.gradient_slots = options.gradient_slots ? std::optional(3) : std::nullopt;
    CAPTURE(std::string(variant.name));
    CAPTURE(options.overlap);
    LaunchLog launches(4);
    std::size_t buckets = 0;
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, nested_model(), options);
                for (int step = 0; step < steps; ++step) {
                  {
                    const auto micro_batch = trainer.runtime.micro_batch();
                    use_nested(trainer, false, [](UnitId) {});
                    use_nested(trainer, true, [](UnitId) {});
                  }
                  trainer.runtime.finish_gradients();
                  trainer.optimize();
                }
                if (world.rank() == 0) {
                  buckets = trainer.runtime.bucket_plan().buckets.size();
                }
                trainer.expect_oracle();
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
    if (is_agreed(options)) {  // the last gather is ahead of a step that does not come
      CHECK(unshards(launches, options).size() == buckets * steps + (options.overlap ? 1 : 0));
      CHECK(launches.buckets(reduces_by(options)).size() == buckets * steps);
    }
  }
}

TEST_CASE("S20: a use waits for the parameters of its own unit, and for no others") {
  for (const Strategy strategy : {Strategy::owner_broadcast, Strategy::sharded_optimizer}) {
    // All gathers behind the one of `last` are held up, though all have been asked for.
    for (BucketId last = 0; last < 4; ++last) {
      CAPTURE(static_cast<int>(strategy));
      CAPTURE(last);
      Options options{.strategy = strategy, .prefetch_depth = 8};
      options.bucket_bytes = strategy == Strategy::sharded_optimizer ? 1 : 0;
      CHECK(on_ranks(4, [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, nested_model(), options);
              findings.equal(trainer.runtime.bucket_plan().buckets.size(), std::size_t{5},
                             "buckets");
              Gate gathers;
              RankActors& actors = world.context().actors();
              {
                Update update = trainer.runtime.update();
                for (BucketId bucket = 0; bucket < 5; ++bucket) {
                  update.finish(bucket);
                  if (bucket == last) {
                    while (actors.state().launched.load() + 1 < actors.next_ticket()) {
                      std::this_thread::yield();
                    }
                    gathers.close(stream_of(world, "gather"));
                  }
                }
              }
              std::atomic<bool> opened{false};
              std::vector<bool> free;  // per use, whether it began before the gate was opened
              std::atomic<std::int64_t> begun{0};
              const auto micro_batch = trainer.runtime.micro_batch();
              // The first unit with a bucket behind the gate opens it, or would wait for ever.
              const std::array<BucketId, 4> needs{0, 2, 3, 4};
              const std::jthread opener([&] {
                const auto first_held = static_cast<std::int64_t>(
                    std::ranges::count_if(needs, [&](BucketId need) { return need <= last; }));
                while (begun.load() < first_held) {
                  std::this_thread::yield();
                }
                // Time enough for a use that does not wait to be found out.
                std::this_thread::sleep_for(std::chrono::milliseconds{20});
                opened = true;
                gathers.open();
              });
              use_nested(trainer, false, [&](UnitId) {
                free.push_back(!opened);
                ++begun;
              });
              for (std::size_t unit = 0; unit < needs.size(); ++unit) {
                findings.expect(free[unit] == (needs[unit] <= last),
                                "unit " + std::to_string(unit) +
                                    (free[unit] ? " did not wait" : " waited for another's"));
              }
            }) == "");
    }
  }
}

}  // namespace
}  // namespace troupe::test
