// Tests of examples/gpt/options.hpp.
#include <troupe/examples/gpt/options.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace gpt::test {

namespace {

using Arguments = std::vector<const char*>;

Options good(const Arguments& arguments) {
  const auto parsed = parse_options(arguments);
  REQUIRE(std::holds_alternative<Options>(parsed));
  return std::get<Options>(parsed);
}

Refusal bad(const Arguments& arguments) {
  const auto parsed = parse_options(arguments);
  REQUIRE(std::holds_alternative<Refusal>(parsed));
  return std::get<Refusal>(parsed);
}

}  // namespace

TEST_CASE("without arguments the defaults hold") {
  const Options options = good({});
  CHECK(options.config == Config{});
  CHECK(options.ranks == 4);
  CHECK(options.strategy == troupe::Strategy::full_shard);
  CHECK_FALSE(options.all_strategies);
  CHECK(options.overlap);
  CHECK(options.bucket_bytes == 0);
  CHECK_FALSE(options.keep_gradients);
  CHECK(options.replicas == 1);
  CHECK_FALSE(options.sum_at_step_end);
  CHECK_FALSE(options.keep_gathered);
  CHECK(options.regather == 0);
  CHECK(options.micro_batches == 1);
  CHECK(options.optimizer.kind == OptimizerOptions::Kind::adamw);
  CHECK(options.optimizer.lr == 1e-3F);
  CHECK_FALSE(options.bf16_parameters);
  CHECK_FALSE(options.slots.has_value());
  CHECK_FALSE(options.prefetch_depth.has_value());
  CHECK(options.data == "/usr/share/common-licenses");
  CHECK(options.reference);
  CHECK(options.trace.empty());
  CHECK(tokens_per_step(options) == 4 * 4 * 128);
}

TEST_CASE("every option arrives") {
  const Options options = good({"--ranks",    "7",       "--layers",         "2",
                                "--width",    "48",      "--heads",          "3",
                                "--sequence", "9",       "--batch",          "5",
                                "--steps",    "11",      "--micro-batches",  "2",
                                "--lr",       "0.25",    "--seed",           "12345",
                                "--slots",    "4",       "--prefetch-depth", "0",
                                "--dtype",    "bf16",    "--optimizer=sgd",  "--data",
                                "/a b",       "--trace", "a trace.json",     "--no-reference"});
  CHECK(options.config == Config{.layers = 2, .width = 48, .heads = 3, .sequence = 9, .batch = 5});
  CHECK(options.ranks == 7);
  CHECK(options.steps == 11);
  CHECK(options.micro_batches == 2);
  CHECK(options.optimizer.lr == 0.25F);
  CHECK(options.optimizer.kind == OptimizerOptions::Kind::sgd);
  CHECK(options.seed == 12345);
  CHECK(options.slots == 4);
  CHECK(options.prefetch_depth == 0);
  CHECK(options.bf16_parameters);
  CHECK(options.data == "/a b");
  CHECK_FALSE(options.reference);
  CHECK(options.trace == "a trace.json");
  CHECK(tokens_per_step(options) == 7 * 2 * 5 * 9);
  CHECK(good({"--seed", "18446744073709551615"}).seed == ~uint64_t{0});

  const ReferenceOptions reference = reference_options(options, 3);
  CHECK(reference.ranks == 7);
  CHECK(reference.micro_batches == 2);
  CHECK(reference.threads == 3);
  CHECK(reference.seed == 12345);
  CHECK(reference.bf16_parameters);
  CHECK(reference.optimizer.kind == OptimizerOptions::Kind::sgd);
  CHECK(reference.optimizer.lr == 0.25F);
}

TEST_CASE("a strategy and its variants arrive") {
  const Options options =
      good({"--ranks", "8", "--strategy", "sharded_optimizer", "--no-overlap", "--bucket-bytes",
            "4096", "--keep-gradients", "--replicas", "2", "--sum-at-step-end"});
  CHECK(options.strategy == troupe::Strategy::sharded_optimizer);
  CHECK(strategies(options) == std::vector{troupe::Strategy::sharded_optimizer});
  CHECK_FALSE(options.overlap);
  CHECK(options.bucket_bytes == 4096);
  CHECK(options.keep_gradients);
  CHECK(options.replicas == 2);
  CHECK(options.sum_at_step_end);
  const ReferenceOptions reference = reference_options(options, 1);
  CHECK(reference.replicas == 2);
  CHECK(reference.sum_at_step_end);
  CHECK(good({"--keep-gathered"}).keep_gathered);
  CHECK(good({"--regather", "2"}).regather == 2);
  CHECK(good({"--strategy", "owner_broadcast"}).strategy == troupe::Strategy::owner_broadcast);

  const Options all = good({"--strategy", "all", "--no-overlap", "--keep-gradients"});
  CHECK(all.all_strategies);
  CHECK(strategies(all) == std::vector{troupe::Strategy::owner_broadcast,
                                       troupe::Strategy::sharded_optimizer,
                                       troupe::Strategy::full_shard});
}

TEST_CASE("help is a text that lists every option, and no mistake") {
  for (const char* name : {"--help", "-h"}) {
    const Refusal help = bad({"--ranks", "2", name});
    CHECK(help.exit_code == 0);
    for (const char* option : {"--ranks",
                               "--layers",
                               "--width",
                               "--heads",
                               "--sequence",
                               "--batch",
                               "--micro-batches",
                               "--steps",
                               "--lr",
                               "--seed",
                               "--prefetch-depth",
                               "--slots",
                               "--dtype",
                               "--data",
                               "--optimizer",
                               "--no-reference",
                               "--trace",
                               "--strategy",
                               "--no-overlap",
                               "--bucket-bytes",
                               "--keep-gradients",
                               "--replicas",
                               "--sum-at-step-end",
                               "--keep-gathered",
                               "--regather"}) {
      CAPTURE(option);
      CHECK(help.text.find(option) != std::string::npos);
    }
  }
}

TEST_CASE("a wrong value is answered with one line that names it and what is expected") {
  struct Row {
    Arguments arguments;
    std::string line;
  };
  const std::vector<Row> rows{
      {{"--ranks", "0"}, "ranks is 0, must be from 1 to 256"},
      {{"--ranks", "257"}, "ranks is 257, must be from 1 to 256"},
      {{"--ranks", "-4294967295"}, "ranks is -4294967295, must be from 1 to 256"},
      {{"--layers", "0"}, "layers is 0, must be from 1 to 1024"},
      {{"--width", "-1"}, "width is -1, must be from 1 to 16384"},
      {{"--heads", "0"}, "heads is 0, must be from 1 to 1024"},
      {{"--heads", "3"}, "heads 3 does not divide width 128"},
      {{"--sequence", "0"}, "sequence is 0, must be from 1 to 16384"},
      {{"--batch", "0"}, "batch is 0, must be from 1 to 16384"},
      {{"--micro-batches", "0"}, "micro-batches is 0, must be from 1 to 1024"},
      {{"--steps", "0"}, "steps is 0, must be from 1 to 1000000"},
      {{"--slots", "0"}, "slots is 0, must be from 1 to 1026"},
      {{"--strategy", "zero"},
       "strategy is 'zero', must be owner_broadcast, sharded_optimizer, full_shard or all"},
      {{"--bucket-bytes", "-1"}, "bucket-bytes is -1, must be from 0 to 1099511627776"},
      {{"--replicas", "0"}, "replicas is 0, must be from 1 to 256"},
      {{"--regather", "-1"}, "regather is -1, must be from 0 to 256"},
      {{"--strategy", "all", "--slots", "3"},
       "slots is 3, but with owner_broadcast each bucket has memory of its own; leave it out"},
      {{"--keep-gathered", "--slots", "3"},
       "slots is 3, but with full_shard and keep-gathered each bucket has memory of its own; "
       "leave it out"},
      {{"--strategy", "all", "--replicas", "2"},
       "Options::mesh.replicate is 2; expected 1 under Strategy::owner_broadcast: a parameter has "
       "one owner, not one in each copy"},
      {{"--replicas", "3"},
       "mesh.replicate is 3, which does not divide the world size, 4; what would do: 1, 2, 4"},
      {{"--regather", "3"}, "regather is 3, must divide the ranks that share a copy, 4"},
      {{"--strategy", "all", "--keep-gathered"},
       "Options::reshard_after_forward is false; expected true under Strategy::owner_broadcast: "
       "parameters stay anyway"},
      {{"--strategy", "sharded_optimizer", "--regather", "2"},
       "Options::regather_group_size is 2; expected 0 under Strategy::sharded_optimizer: nothing "
       "is "
       "gathered twice"},
      {{"--strategy", "all", "--trace", "t.json"},
       "trace is of one training, so not for --strategy all"},
      {{"--prefetch-depth", "-1"}, "prefetch-depth is -1, must be from 0 to 1026"},
      {{"--lr", "0"}, "lr is 0, must be above 0 and at most 100"},
      {{"--lr", "1e-60"}, "lr is 1e-60, must be above 0 and at most 100"},
      {{"--lr", "nan"}, "lr is nan, must be above 0 and at most 100"},
      {{"--lr", "inf"}, "lr is inf, must be above 0 and at most 100"},
      {{"--seed", "-1"}, "seed is '-1', must be a whole number from 0 to 2^64 - 1"},
      {{"--seed", "18446744073709551616"},
       "seed is '18446744073709551616', must be a whole number from 0 to 2^64 - 1"},
      {{"--optimizer", "lion"}, "optimizer is 'lion', must be adamw or sgd"},
      {{"--dtype", "fp16"}, "dtype is 'fp16', must be fp32 or bf16"}};
  for (const Row& row : rows) {
    const Refusal refusal = bad(row.arguments);
    CHECK(refusal.exit_code == 2);
    CHECK(refusal.text == row.line + " (--help lists the options)");
  }
}

TEST_CASE("a launcher says how many ranks there are, and which of them speaks") {
  const auto parse = [](const Arguments& arguments, int rank, int world_size) {
    troupe::JoinOptions join;
    join.rank = rank;
    join.world_size = world_size;
    return parse_options(arguments, join);
  };
  const auto options = std::get<Options>(parse({}, 2, 3));
  CHECK(options.ranks == 3);
  REQUIRE(options.join);
  CHECK(options.join->rank == 2);
  CHECK_FALSE(speaks(options));
  CHECK(speaks(std::get<Options>(parse({"--ranks", "3"}, 0, 3))));
  CHECK(speaks(good({})));
  CHECK_FALSE(good({}).join);

  CHECK(std::get<Refusal>(parse({"--ranks", "4"}, 0, 3)).text ==
        "ranks is 4, but the launcher has started 3; leave it out (--help lists the options)");
  // What must divide the ranks is looked at with those of the launcher.
  CHECK(std::get<Refusal>(parse({"--replicas", "2"}, 0, 3))
            .text.starts_with("mesh.replicate is 2, which does not divide the world size, 3"));
}

TEST_CASE("what the command line parser refuses is one line that names the argument") {
  struct Row {
    Arguments arguments;
    std::string named;
  };
  const std::vector<Row> rows{{{"--steps", "abc"}, "--steps"},
                              {{"--steps", "1.5"}, "--steps"},
                              {{"--lr", "fast"}, "--lr"},
                              {{"--ranks"}, "--ranks"},
                              {{"--ranks", "2", "--ranks", "3"}, "--ranks"},
                              {{"--rank", "2"}, "--rank"},
                              {{"stray"}, "stray"},
                              {{"--data", "a\nb", "stray\nline"}, "stray line"}};
  for (const Row& row : rows) {
    const Refusal refusal = bad(row.arguments);
    CAPTURE(refusal.text);
    CHECK(refusal.exit_code == 2);
    CHECK(refusal.text.find(row.named) != std::string::npos);
    CHECK(refusal.text.find('\n') == std::string::npos);
  }
}

}  // namespace gpt::test
