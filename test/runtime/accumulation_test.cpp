/// Micro-batches that leave their gradients to later ones, under every strategy and variant: what
/// they add up to, what is launched for them, what they hold, and what is refused.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/refusal.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <numeric>
#include <string_view>

namespace troupe::test {
namespace {

struct Run {
  Options options;
  int ranks = 4;
};

/// Every variant with gradients that keep their buffers, on each number of ranks that it can have.
std::vector<Run> runs() {
  std::vector<Run> runs;
  for (const D4Variant& variant : d4_variants()) {
    Options options = variant.options;
    options.free_full_gradients = false;
    options.gradient_slots.reset();
    for (const int ranks : {1, 2, 3, 4, 7}) {
      const int divisor =
          std::lcm(options.mesh.replicate, std::max(options.regather_group_size, 1));
      if (ranks % divisor == 0) {
        runs.push_back({options, ranks});
      }
    }
  }
  return runs;
}

void on_each(const std::function<void(const Run&, D4Trainer&)>& body) {
  const Model model = d4_model();
  for (const Run& run : runs()) {
    CAPTURE(run.ranks);
    CAPTURE(std::string(row_of(run.options.strategy).name));
    LaunchLog launches(run.ranks);
    CHECK(on_ranks(
              run.ranks,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, model, run.options);
                body(run, trainer);
              },
              &launches) == "");
    CHECK(launches.same_on_all_ranks());
  }
}

/// A micro-batch for each letter, "r" reduces, "-" does not; factors are powers of two.
void accumulate(D4Trainer& trainer, std::string_view pattern) {
  float factor = 1.0F;
  for (const char letter : pattern) {
    trainer.micro_batch(factor, letter == 'r');
    factor *= 2.0F;
  }
}

void expect_sum(D4Trainer& trainer, float factors) {
  const int ranks = trainer.world.size();
  trainer.expect_gradients([&](BucketId bucket) {
    return d4_gradient_sum(ranks, bucket) * factors / static_cast<float>(ranks);
  });
}

std::uint64_t reduces_last_step(const D4Trainer& trainer) {
  const auto op = static_cast<std::size_t>(reduces_by(trainer.runtime.options()));
  return trainer.runtime.report().collectives_last_step[op];
}

TEST_CASE("S29: micro-batches that reduce and that do not add up, mixed in any way") {
  on_each([](const Run&, D4Trainer& trainer) {
    for (const std::string_view pattern : {"r-r-r", "-----", "rr---", "---rr", "-r-r-"}) {
      accumulate(trainer, pattern);
      trainer.runtime.finish_gradients();
      expect_sum(trainer, 31.0F);  // 77.5 (i + 1) on four ranks
      trainer.optimize();
    }
    trainer.expect_oracle();
  });
}

TEST_CASE("S29: without reduces, gradients are one full buffer of each bucket, as planned") {
  on_each([](const Run& run, D4Trainer& trainer) {
    const DeviceCounters& counters = trainer.world.device().counters();
    const MemoryPlan& plan = trainer.runtime.memory_plan();
    const auto allocated = [&] {
      return counters.bytes[static_cast<std::size_t>(Purpose::gradient_slots)].load();
    };
    std::int64_t full = 0;
    for (const Bucket& bucket : trainer.runtime.bucket_plan().buckets) {
      const SlotClass& own = plan.gradients.classes[plan.gradients.class_of[bucket.id]];
      trainer.findings.equal(own.count, 1U, "gradient buffers of a bucket");
      full += own.bytes_per_slot;
    }
    trainer.findings.equal(plan.gradients.bytes, full, "bytes of gradient buffers in the plan");
    if (run.ranks != 3 && run.ranks != 7) {
      trainer.findings.equal(full, 4 * 4096, "bytes of four layers");  // nothing is padded
    }
    for (int step = 0; step < 2; ++step) {
      trainer.micro_batch(1.0F, true);
      trainer.findings.equal(counters.gradient_bytes.load(), 0, "bytes held after a reduce");
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        trainer.micro_batch(1.0F, false);
        trainer.findings.equal(counters.gradient_bytes.load(), full, "bytes held without");
      }
      trainer.findings.equal(trainer.runtime.report().memory.gradient_slots, full, "reported");
      trainer.findings.equal(allocated(), full, "allocated");
      trainer.runtime.finish_gradients();
      trainer.findings.equal(counters.gradient_bytes.load(), 0, "bytes held after the step");
      trainer.optimize();
    }
    trainer.findings.equal(trainer.runtime.report().memory.gradients_peak, full, "most held");
  });
}

TEST_CASE(
    "S30: reduces in each micro-batch hold two layers of gradients, and refuse to keep more") {
  const Model model = d4_model();
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    const bool may_keep = !variant.options.free_full_gradients;
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, model, variant.options);
            for (int step = 0; step < 2; ++step) {
              for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
                if (!may_keep) {
                  expect_refused(
                      findings, "a micro-batch without a reduce", {"`free_full_gradients` = false"},
                      [&] { static_cast<void>(trainer.runtime.micro_batch({.reduce = false})); });
                }
                trainer.micro_batch(1.0F, !may_keep);
              }
              trainer.runtime.finish_gradients();
              expect_sum(trainer, 4.0F);  // 40 (i + 1) / 4
              findings.equal(reduces_last_step(trainer), may_keep ? 4U : 16U, "reduces");
              trainer.optimize();
            }
            trainer.expect_oracle();
            const MemoryReport memory = trainer.runtime.report().memory;
            findings.equal(memory.gradient_slots, may_keep ? 4 * 4096 : 2 * 4096, "planned");
            findings.expect(memory.gradients_peak <= memory.gradient_slots, "more than planned");
          }) == "");
  }
}

TEST_CASE("S31: eight micro-batches of which the last one reduces: one reduce for each bucket") {
  on_each([](const Run& run, D4Trainer& trainer) {
    accumulate(trainer, "-------r");
    trainer.runtime.finish_gradients();
    trainer.findings.equal(reduces_last_step(trainer), 4U, "reduces, the last one does");
    expect_sum(trainer, 255.0F);
    trainer.optimize();
    accumulate(trainer, "--------");
    trainer.runtime.finish_gradients();
    trainer.findings.equal(reduces_last_step(trainer), 4U, "reduces, the end of the step does");
    trainer.optimize();
    accumulate(trainer, "rrrrrrrr");
    trainer.runtime.finish_gradients();
    trainer.findings.equal(reduces_last_step(trainer), 32U, "reduces, each does");
    const auto all_reduce = static_cast<std::size_t>(Collective::all_reduce);
    const bool each = run.options.mesh.replicate > 1 && !run.options.sum_replicas_at_step_end;
    const bool once = run.options.mesh.replicate > 1 && run.options.sum_replicas_at_step_end;
    trainer.findings.equal(trainer.runtime.report().collectives_last_step[all_reduce],
                           each   ? 32U
                           : once ? 4U
                                  : 0U,
                           "sums over replicas");
    trainer.optimize();
    trainer.expect_oracle();
  });
}

TEST_CASE("what is complete is reduced during the micro-batch that reduces") {
  on_each([](const Run&, D4Trainer& trainer) {
    trainer.micro_batch(1.0F, false);
    {
      const auto scope = trainer.runtime.micro_batch();
      for (UnitId unit = 0; unit < 4; ++unit) {
        trainer.forward(unit);
      }
      trainer.backward(3, 2.0F);
      trainer.backward(2, 2.0F);
      trainer.findings.equal(trainer.counters().reduces, 2U, "reduces behind two backwards");
      trainer.backward(1, 2.0F);
      trainer.backward(0, 2.0F);
    }
    trainer.runtime.finish_gradients();
    expect_sum(trainer, 3.0F);
    trainer.optimize();
    trainer.expect_oracle();
  });
}

TEST_CASE("a layer used in some micro-batches only loses nothing, whichever of them reduce") {
  on_each([](const Run&, D4Trainer& trainer) {
    const auto layers = [&](const std::vector<UnitId>& units, float factor, bool reduce) {
      const auto scope = trainer.runtime.micro_batch({.reduce = reduce});
      for (const UnitId unit : units) {
        trainer.forward(unit);
      }
      for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
        trainer.backward(*unit, factor);
      }
    };
    for (int step = 0; step < 2; ++step) {
      layers({0, 1, 3}, 1.0F, false);
      layers({1, 2}, 2.0F, true);  // 0 and 3 were filled before, 2 is not
      layers({3}, 4.0F, false);
      layers({}, 8.0F, false);
      trainer.runtime.finish_gradients();
      const int ranks = trainer.world.size();
      trainer.expect_gradients([&](BucketId bucket) {
        constexpr std::array<float, 4> factors{1.0F, 3.0F, 2.0F, 5.0F};
        return d4_gradient_sum(ranks, bucket) * factors.at(bucket) / static_cast<float>(ranks);
      });
      trainer.optimize();
    }
    trainer.expect_oracle();
  });
}

TEST_CASE("parameters without a gradient in any of the micro-batches count as zero") {
  Model model;
  const UnitId unit = model.add_unit("L0");
  model.add_parameter(unit, {.name = "a", .shape = {100}});
  model.add_parameter(unit, {.name = "b", .shape = {1}});
  model.add_parameter(unit, {.name = "c", .shape = {50}});
  for (const Run& run : runs()) {
    if (!run.options.keep_gathered.empty() || run.options.slots == 2) {
      continue;  // of D4's layers
    }
    CHECK(on_ranks(run.ranks, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, model, run.options);
            const auto micro_batch = [&](std::uint32_t untouched, bool reduce) {
              const auto scope = trainer.runtime.micro_batch({.reduce = reduce});
              trainer.forward(0);
              trainer.backward(0, 1.0F, untouched);
            };
            for (const bool ends : {true, false}) {
              micro_batch(0, true);  // buffers hold something from now on
              micro_batch(0b110, false);
              micro_batch(0b101, false);
              micro_batch(0b111, ends);
              trainer.runtime.finish_gradients();
              trainer.optimize();
            }
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("evaluation comes between, an update does not") {
  on_each([](const Run&, D4Trainer& trainer) {
    trainer.micro_batch(1.0F, false);
    {
      const auto eval = trainer.runtime.eval();
      trainer.forward(2);
    }
    expect_refused(trainer.findings, "an update between micro-batches",
                   {"the last micro-batch did not reduce", "let one reduce", "finish"},
                   [&] { static_cast<void>(trainer.runtime.update()); });
    trainer.micro_batch(2.0F, false);
    trainer.runtime.finish_gradients();
    expect_sum(trainer, 3.0F);
    trainer.optimize();
    trainer.step();
    trainer.expect_oracle();
  });
}

TEST_CASE("on a worker stream, contributions of all micro-batches are awaited") {
  const Model model = d4_model();
  for (const Run& run : runs()) {
    if (run.ranks != 4) {
      continue;
    }
    CHECK(on_ranks(run.ranks, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, model, run.options);
            trainer.stream = &world.host_device().create_host_stream("compute");
            for (const std::string_view pattern : {"--r-", "---"}) {
              accumulate(trainer, pattern);
              trainer.runtime.finish_gradients();
              trainer.optimize();
            }
            trainer.expect_oracle();
          }) == "");
  }
}

TEST_CASE("ranks of which one reduces and another does not are told so") {
  for (const Strategy strategy :
       {Strategy::owner_broadcast, Strategy::sharded_optimizer, Strategy::full_shard}) {
    for (const int ranks : {2, 3, 4, 7}) {
      for (const bool reduce_on_last : {true, false}) {
        CAPTURE(std::string(row_of(strategy).name));
        CAPTURE(ranks);
        const Model model = d4_model();
        const Outcome outcome = outcome_of(
            ranks,
            [&](World& world) {
              Findings findings;
              D4Trainer trainer(world, findings, model,
                                {.strategy = strategy, .free_full_gradients = false});
              const bool last = world.rank() == world.size() - 1;
              for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
                trainer.micro_batch(1.0F, last == reduce_on_last);
              }
              trainer.runtime.finish_gradients();
              trainer.optimize();
              world.barrier();
            },
            std::chrono::milliseconds{1500});
        REQUIRE(outcome.failure.has_value());
        CHECK(outcome.failure->code == ErrorCode::mismatch);
        CHECK(outcome.took < std::chrono::seconds{10});
        const std::string first =
            "rank " + std::to_string(ranks - 1) + " launched another collective than rank";
        CHECK_MESSAGE((ranks == 2 || contains(outcome.text(), first)), outcome.text());
        CHECK_MESSAGE(contains(outcome.text(), "(ticket"), outcome.text());
        for (const std::string& heard : outcome.heard) {
          CHECK(contains(heard, outcome.text()));
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::test
