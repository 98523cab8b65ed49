// Tests of examples/gpt/sharded.hpp: sharded training is the reference's, bit by bit.
#include "gpt_fixture.hpp"
#include <troupe/core/error.hpp>
#include <troupe/examples/gpt/report.hpp>
#include <troupe/examples/gpt/sharded.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <vector>

namespace gpt::test {

namespace {

/// Width 20 lets no parameter end where a shard does.
constexpr Config small{.layers = 2, .width = 20, .heads = 2, .sequence = 8, .batch = 2};

Corpus corpus(int64_t sequence) {
  const TemporaryFolder folder("sharded");
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "the " + std::to_string(i) + "th line of the text; ";
  }
  return std::get<Corpus>(Corpus::load(folder.write("text", text), sequence));
}

Options options_of(int ranks) {
  Options options;
  options.config = small;
  options.ranks = ranks;
  options.steps = 3;
  options.seed = 7;
  options.optimizer.lr = 0.01F;
  return options;
}

ShardedRun train(const Options& options, const Corpus& text) {
  const auto ignore = [](const std::string&) {};
  return train_sharded(options, text, {},
                       {.timeout = std::chrono::seconds{60}, .on_warning = ignore});
}

Comparison compared(const Options& options, const Corpus& text, const ShardedRun& run) {
  ReferenceTrainer reference(options.config, reference_options(options, 1), text);
  std::vector<double> losses;
  losses.reserve(static_cast<size_t>(options.steps));
  for (int64_t step = 0; step < options.steps; ++step) {
    losses.push_back(reference.step());
  }
  return compare(run, reference, losses);
}

}  // namespace

TEST_CASE("parameters and losses are the reference's for every number of ranks and arithmetic") {
  const Corpus text = corpus(small.sequence);
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const bool bf16 : {false, true}) {
      for (const auto optimizer : {OptimizerOptions::Kind::adamw, OptimizerOptions::Kind::sgd}) {
        for (const int64_t micro_batches : {1, 2}) {
          CAPTURE(ranks);
          CAPTURE(bf16);
          CAPTURE(static_cast<int>(optimizer));
          CAPTURE(micro_batches);
          Options options = options_of(ranks);
          options.bf16_parameters = bf16;
          options.optimizer.kind = optimizer;
          options.micro_batches = micro_batches;
          const ShardedRun run = train(options, text);
          REQUIRE(run.steps.size() == 3);
          CHECK(run.steps[2].loss < run.steps[0].loss);
          const Comparison comparison = compared(options, text, run);
          CHECK_MESSAGE(comparison.equal(), to_text(comparison));
          // Two blocks of 12 w^2 + 13 w, tables of 256, 256 and 8 rows, the last norm.
          CHECK(comparison.numel == 2 * (12 * 20 * 20 + 13 * 20) + (256 + 256 + 8 + 2) * 20);
          CHECK(comparison.steps == 3);
        }
      }
    }
  }
}

TEST_CASE("parameters and losses are the reference's with every strategy and variant") {
  struct Variant {
    const char* name;
    void (*set)(Options&);
    int ranks_divisor = 1;
  };
  const Variant variants[]{
      {"owner_broadcast", [](Options& o) { o.strategy = troupe::Strategy::owner_broadcast; }},
      {"owner_broadcast, fused",
       [](Options& o) {
         o.strategy = troupe::Strategy::owner_broadcast;
         o.bucket_bytes = 4096;
       }},
      {"sharded_optimizer", [](Options& o) { o.strategy = troupe::Strategy::sharded_optimizer; }},
      {"sharded_optimizer, gradients kept",
       [](Options& o) {
         o.strategy = troupe::Strategy::sharded_optimizer;
         o.keep_gradients = true;
       }},
      {"full_shard", [](Options&) {}},
      {"full_shard, parameters kept", [](Options& o) { o.keep_gathered = true; }},
      {"full_shard, gathered again among two", [](Options& o) { o.regather = 2; }, 2},
      {"full_shard, two replicas", [](Options& o) { o.replicas = 2; }, 2},
      {"full_shard, two replicas, summed once",
       [](Options& o) {
         o.replicas = 2;
         o.sum_at_step_end = true;
       },
       2}};
  const Corpus text = corpus(small.sequence);
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const Variant& variant : variants) {
      for (const bool overlap : {true, false}) {
        if (ranks % variant.ranks_divisor != 0) {
          continue;
        }
        CAPTURE(ranks);
        CAPTURE(std::string(variant.name));
        CAPTURE(overlap);
        Options options = options_of(ranks);
        options.micro_batches = 2;
        options.overlap = overlap;
        variant.set(options);
        const ShardedRun run = train(options, text);
        const Comparison comparison = compared(options, text, run);
        CHECK_MESSAGE(comparison.equal(), to_text(comparison));
        for (const troupe::Report& report : run.reports) {
          CHECK(report.strategy == options.strategy);
        }
      }
    }
  }
}

TEST_CASE("slots and prefetch depth change no bit") {
  const Corpus text = corpus(small.sequence);
  Options options = options_of(3);
  const auto weights = train(options, text).weights;
  for (const int slots : {1, 2, 4}) {
    for (const int depth : {0, 1, 3}) {
      CAPTURE(slots);
      CAPTURE(depth);
      options.slots = slots;
      options.prefetch_depth = depth;
      CHECK(train(options, text).weights == weights);
    }
  }
}

TEST_CASE("the model has the units and parameters of the network, in their order") {
  const troupe::Model model = sharded_model(small, true);
  const auto specs = units(small);
  REQUIRE(model.units().size() == specs.size());
  size_t id = 0;
  for (size_t unit = 0; unit < specs.size(); ++unit) {
    CHECK(model.units()[unit].name == specs[unit].name);
    for (const ParameterSpec& spec : specs[unit].parameters) {
      const troupe::Parameter& parameter = model.parameters().at(id++);
      CHECK(parameter.full_name == full_name(specs[unit], spec));
      CHECK(parameter.spec.shape == spec.shape);
      CHECK(parameter.spec.dtype == troupe::DType::bf16);
      CHECK(parameter.unit == unit);
    }
  }
  CHECK(id == model.parameters().size());
}

TEST_CASE("a rank that fails ends the run with its own text") {
  const Corpus other = corpus(5);  // no whole sequences of 8
  const auto ignore = [](const std::string&) {};
  std::string text;
  try {
    train_sharded(options_of(3), other, {},
                  {.timeout = std::chrono::seconds{60}, .on_failure = ignore});
  } catch (const troupe::Error& error) {
    text = error.what();
  }
  CAPTURE(text);
  CHECK(text.find("are no whole sequences of 5") != std::string::npos);
}

TEST_CASE("training ends with the first loss that is not finite") {
  Options options = options_of(2);
  options.steps = 1000;
  options.optimizer = {.kind = OptimizerOptions::Kind::sgd, .lr = 100};
  const ShardedRun run = train(options, corpus(small.sequence));
  REQUIRE(run.steps.size() < 1000);
  for (size_t step = 0; step < run.steps.size(); ++step) {
    CHECK(std::isfinite(run.steps[step].loss) == (step + 1 < run.steps.size()));
  }
}

}  // namespace gpt::test
