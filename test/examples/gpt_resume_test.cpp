// The demo stopped and gone on with: the same losses and parameters as if it had never stopped.
#include "troupe/examples/gpt/demo.hpp"
#include "troupe/examples/gpt/options.hpp"
#include "troupe/examples/gpt/resume.hpp"
#include "troupe/test/support/checkpoints.hpp"
#include <troupe/core/strategy.hpp>

#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <variant>
#include <vector>

namespace {

using troupe::Strategy;
using troupe::test::TestFolder;

gpt::Options small(Strategy strategy, int ranks) {
  gpt::Options options;
  options.config = {.layers = 1, .width = 16, .heads = 2, .sequence = 8, .batch = 1};
  options.strategy = strategy;
  options.ranks = ranks;
  options.data = std::filesystem::path(TROUPE_SOURCE_DIR) / "LICENSE";
  return options;
}

struct Output {
  int code = 0;
  std::string out, err;
  [[nodiscard]] bool says(const std::string& text) const {
    return out.find(text) != std::string::npos;
  }
};

Output demo(const gpt::Options& options) {
  std::ostringstream out;
  std::ostringstream err;
  Output output;
  try {
    output.code = gpt::run_demo(options, out, err, false);
  } catch (const troupe::Error& error) {
    output.code = error.code() == troupe::ErrorCode::bad_configuration ? 2 : 1;
    err << error.what() << "\n";
  }
  output.out = out.str();
  output.err = err.str();
  return output;
}

/// Trains three of six steps and saves, then goes on with other options.
Output stop_and_go_on(gpt::Options options, gpt::Options later, const TestFolder& folder) {
  options.steps = 3;
  options.save = folder.path();
  options.reference = false;
  const Output first = demo(options);
  REQUIRE(first.code == 0);
  REQUIRE(first.says("saved                   1 checkpoint to " + folder.path().string()));
  later.steps = 6;
  later.resume = folder.path();
  return demo(later);
}

TEST_CASE("a run goes on from a checkpoint as if it had never stopped, with any strategy") {
  const std::vector<Strategy> strategies{Strategy::full_shard, Strategy::sharded_optimizer,
                                         Strategy::owner_broadcast};
  for (const Strategy saved : strategies) {
    for (const Strategy resumed : strategies) {
      CAPTURE(troupe::row_of(saved).name);
      CAPTURE(troupe::row_of(resumed).name);
      const TestFolder folder;
      const Output output = stop_and_go_on(small(saved, 3), small(resumed, 3), folder);
      CHECK(output.code == 0);
      CHECK(output.says("step-000000003, saved by 3 ranks after 3 steps"));
      CHECK(
          output.says("bitwise equal to those of the unsharded reference: all 11 632, and the "
                      "losses of 3 steps"));
    }
  }
}

TEST_CASE("a run goes on with micro-batches, sgd, bf16 and replicas") {
  std::vector<gpt::Options> variants(4, small(Strategy::full_shard, 4));
  variants[0].micro_batches = 2;
  variants[1].optimizer.kind = gpt::OptimizerOptions::Kind::sgd;
  variants[2].bf16_parameters = true;
  variants[3].replicas = 2;
  for (const gpt::Options& options : variants) {
    const TestFolder folder;
    const Output output = stop_and_go_on(options, options, folder);
    CHECK(output.code == 0);
    CHECK(output.says("and the losses of 3 steps"));
  }
}

TEST_CASE("other ranks load the same parameters") {
  for (const int ranks : {1, 2, 4, 7}) {
    CAPTURE(ranks);
    const TestFolder folder;
    const Output output = stop_and_go_on(small(Strategy::full_shard, 3),
                                         small(Strategy::sharded_optimizer, ranks), folder);
    CHECK(output.code == 0);
    CHECK(
        output.says("loaded parameters       bitwise equal to those of the unsharded reference "
                    "after 3 steps of 3 ranks: all 11 632"));
    CHECK(output.says("what other ranks, or in another order, trained since is not compared"));
  }
  const TestFolder folder;
  gpt::Options replicas = small(Strategy::full_shard, 4);
  replicas.replicas = 2;
  const Output output = stop_and_go_on(replicas, small(Strategy::full_shard, 4), folder);
  CHECK(output.code == 0);
  CHECK(output.says("after 3 steps of 4 ranks"));
}

TEST_CASE("a run whose ranks have changed before goes on without a claim") {
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const TestFolder folder;
    gpt::Options first = small(Strategy::full_shard, 3);
    first.steps = 2;
    first.save = folder.path();
    CHECK(demo(first).code == 0);
    gpt::Options second = small(Strategy::full_shard, 2);
    second.steps = 3;
    second.resume = folder.path();
    second.save = folder.path();
    CHECK(demo(second).code == 0);
    gpt::Options third = small(Strategy::owner_broadcast, ranks);
    third.steps = 4;
    third.resume = folder.path();
    const Output output = demo(third);
    CHECK(output.code == 0);
    CHECK(output.says("no unsharded reference: the ranks have changed between steps before"));
    CHECK(output.says("final parameters        not compared"));
  }
}

TEST_CASE("checkpoints are made every so often, and at the end") {
  const TestFolder folder;
  gpt::Options options = small(Strategy::full_shard, 2);
  options.steps = 7;
  options.save = folder.path();
  options.save_every = 3;
  const Output output = demo(options);
  CHECK(output.code == 0);
  CHECK(output.says("saved                   3 checkpoints to "));
  CHECK(troupe::test::listing(folder.path()) == "step-000000006 step-000000007");
  SUBCASE("another run does not save among them") {
    const Output again = demo(options);
    CHECK(again.code == 2);
    CHECK(again.err == "gpt: --save names a folder with a checkpoint, " +
                           (folder.path() / "step-000000007").string() +
                           ", that this run does not go on from; --resume it, or name another "
                           "folder\n");
  }
  SUBCASE("one that goes on does") {
    options.resume = folder.path();
    options.steps = 8;
    CHECK(demo(options).code == 0);
    CHECK(troupe::test::listing(folder.path()) == "step-000000007 step-000000008");
  }
  const std::string at = (folder.path() / "step-000000007").string();
  gpt::Options later = options;
  later.save.clear();
  later.save_every = 0;
  later.resume = at;
  SUBCASE("of another run none is taken") {
    later.steps = 9;
    later.seed = 2;
    const Output output_later = demo(later);
    CHECK(output_later.code == 2);
    CHECK(output_later.err == at + " is of a run with 'seed 1'; this one has 'seed 2'\n");
  }
  SUBCASE("nor one with nothing left to do") {
    later.steps = 7;
    const Output output_later = demo(later);
    CHECK(output_later.code == 2);
    CHECK(output_later.err == at + " is of step 7; --steps 7 leaves nothing to train\n");
  }
  SUBCASE("nor one that is not there") {
    later.resume = folder.path() / "none";
    const Output output_later = demo(later);
    CHECK(output_later.code == 1);
    CHECK(output_later.err == "rank 0: " + later.resume.string() +
                                  ": there is no checkpoint in it (a folder step-… or an "
                                  "index.json)\n");
  }
}

TEST_CASE("a folder that cannot be made is known before anything is trained") {
  gpt::Options options = small(Strategy::full_shard, 2);
  options.save = "/dev/null/run";
  const Output output = demo(options);
  CHECK(output.code == 2);
  CHECK(output.err == "gpt: --save: cannot make the folder /dev/null/run: Not a directory\n");
}

TEST_CASE("options of checkpoints that do not go together are refused") {
  const auto error = [](std::vector<const char*> arguments) {
    const auto parsed = gpt::parse_options(arguments);
    const auto* refusal = std::get_if<gpt::Refusal>(&parsed);
    return refusal == nullptr ? "" : refusal->text;
  };
  CHECK(error({"--save", "x", "--save-every", "3", "--resume", "y"}) == "");
  CHECK(error({"--save-every", "3"}) ==
        "save-every is 3, but no --save says where (--help lists the options)");
  CHECK(error({"--strategy", "all", "--save", "x"}) ==
        "save is of one training, so not for --strategy all (--help lists the options)");
  CHECK(error({"--strategy", "all", "--resume", "x"}) == "");
}

}  // namespace
