// Tests of examples/gpt/report.hpp and demo.hpp: what a person reads is true.
#include "gpt_fixture.hpp"
#include <troupe/examples/gpt/demo.hpp>
#include <troupe/examples/gpt/report.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

namespace gpt::test {

namespace {

/// Four units whose buckets are of similar size, so that one class of slots holds them all:
/// embed 4224 elements, blocks 3280 each, head 4128.
constexpr Config small{.layers = 2, .width = 16, .heads = 2, .sequence = 8, .batch = 2};

std::string text() {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "the " + std::to_string(i) + "th line of the text; ";
  }
  return text;
}

Options options_of(int slots) {
  Options options;
  options.config = small;
  options.ranks = 2;
  options.steps = 4;
  options.optimizer.lr = 0.01F;
  options.slots = slots;
  return options;
}

struct Output {
  int exit_code;
  std::string out, err;
};

Output run(Options options, bool terminal = false) {
  const TemporaryFolder folder("report");
  options.data = folder.write("text", text());
  std::ostringstream out;
  std::ostringstream err;
  const int exit_code = run_demo(options, out, err, terminal);
  return {exit_code, out.str(), err.str()};
}

/// What follows `name` in the line that begins with it, without the blanks between.
std::string after(const std::string& text, const std::string& name) {
  const size_t begin = text.find("\n" + name + " ");
  if (begin == std::string::npos) {
    return "no line '" + name + "'";
  }
  const size_t value = text.find_first_not_of(' ', begin + 1 + name.size());
  return text.substr(value, text.find('\n', value) - value);
}

}  // namespace

TEST_CASE("the collectives and prefetches of a step are those counted by hand") {
  // With 4 slots all stay held from forward to backward: 4 gathers and the losses. With 3 the
  // embedding gives way to the head, whose turn in the backward comes first, and is gathered once
  // more. With 1 each of the 8 uses gathers, but for the head's backward right after its forward.
  // Every bucket is reduced once for each micro-batch.
  struct Row {
    int slots;
    int64_t micro_batches;
    const char* collectives;
  };
  for (const Row& row :
       {Row{4, 1, "5 all_gather, 4 reduce_scatter"}, Row{4, 2, "5 all_gather, 8 reduce_scatter"},
        Row{3, 1, "6 all_gather, 4 reduce_scatter"}, Row{1, 1, "8 all_gather, 4 reduce_scatter"}}) {
    CAPTURE(row.slots);
    Options options = options_of(row.slots);
    options.micro_batches = row.micro_batches;
    const Output output = run(options);
    CHECK(output.exit_code == 0);
    CHECK(after(output.out, "collectives per step") == row.collectives);
  }
  // Without prefetch every gather is a miss: 5 in each of 4 steps.
  Options options = options_of(3);
  options.prefetch_depth = 0;
  CHECK(after(run(options).out, "uses of buckets") ==
        "32 in 20 gathers: 0 prefetch hits, 20 misses, 12 still held");
}

TEST_CASE("the bytes of a rank stand beside those of unsharded training") {
  // 14912 elements of 4 bytes; each rank has half of them: every bucket is a multiple of 32 here
  // but the blocks (3280, padded to 3296).
  const Output output = run(options_of(4));
  CHECK(after(output.out, "memory of rank 0 of 2") == "sharded    unsharded");
  CHECK(after(output.out, "  main weights") == "29.888 kB    59.648 kB");
  CHECK(after(output.out, "  main gradients") == "29.888 kB    59.648 kB");
  CHECK(after(output.out, "  optimizer state") == "59.776 kB   119.296 kB");
  // Four slots of the largest bucket, 16.896 kB.
  CHECK(after(output.out, "  parameter slots") == "67.584 kB     0.000 kB");
}

TEST_CASE("the report says what was trained and that both are equal") {
  const Output output = run(options_of(4));
  CHECK(output.err.empty());
  CHECK(after("\n" + output.out, "step") ==
        "2 ranks x 1 micro-batch x 2 sequences x 8 bytes = 32 tokens");
  CHECK(after(output.out, "training") ==
        "4 steps of adamw, lr 0.01, seed 1; parameters gathered in fp32");
  CHECK(after(output.out, "final parameters") ==
        "bitwise equal to those of the unsharded reference: all 14 912, and the losses of 4 steps");
  CHECK(output.out.find("  step 4 of 4   loss ") != std::string::npos);
  CHECK(output.out.find('\r') == std::string::npos);

  Options alone = options_of(4);
  alone.reference = false;
  const Output uncompared = run(alone);
  CHECK(uncompared.exit_code == 0);
  CHECK(after(uncompared.out, "final parameters") == "not compared");
}

TEST_CASE("a rank that a launcher has started trains with the others, and only the first tells") {
  Options options = options_of(4);
  options.ranks = 1;
  options.join.emplace();  // of one: it needs no other process
  const Output output = run(options);
  CHECK(output.exit_code == 0);
  CHECK(after(output.out, "sharding")
            .starts_with("full_shard over 1 rank (processes; this one has "));
  CHECK(after(output.out, "final parameters") ==
        "bitwise equal to those of the unsharded reference: all 14 912, and the losses of 4 steps");
}

TEST_CASE("a trace is written where it was asked for, and the time of steps is split") {
  const TemporaryFolder folder("trace");
  Options options = options_of(4);
  options.trace = folder.path() / "t.json";
  const Output output = run(options);
  CHECK(output.exit_code == 0);
  CHECK(output.err.empty());
  const std::string said = after(output.out, "trace");
  CHECK(said.starts_with(options.trace.string() + ": "));
  CHECK(said.ends_with(" records; open it in ui.perfetto.dev"));
  std::ostringstream file;
  file << std::ifstream(options.trace).rdbuf();
  CHECK(file.str().find("\"name\":\"backward block.1\"") != std::string::npos);
  CHECK(file.str().ends_with("\"records_dropped\":0}}\n"));
  CHECK(after(output.out, "time of 4 steps").find(" exposed communication, ") != std::string::npos);

  CHECK(run(options_of(4)).out.find("\ntrace ") == std::string::npos);
  options.trace = folder.path();  // a folder
  const Output refused = run(options);
  CHECK(refused.exit_code == 2);
  CHECK(refused.out.empty());
  CHECK(refused.err ==
        "gpt: cannot write the trace to " + folder.path().string() + ": Is a directory\n");
  options.trace = "/dev/full";
  const Output full = run(options);
  CHECK(full.exit_code == 1);
  CHECK(full.err == "gpt: cannot write the trace to /dev/full: No space left on device\n");
}

TEST_CASE("one bit of one parameter or loss is told apart") {
  const Options options = options_of(4);
  const TemporaryFolder folder("compare");
  const Corpus corpus =
      std::get<Corpus>(Corpus::load(folder.write("text", text()), small.sequence));
  ShardedRun run = train_sharded(options, corpus);
  ReferenceTrainer reference(small, reference_options(options, 1), corpus);
  std::vector<double> losses;
  losses.reserve(4);
  for (int step = 0; step < 4; ++step) {
    losses.push_back(reference.step());
  }
  CHECK(compare(run, reference, losses).equal());

  losses[2] = std::nextafter(losses[2], 100.0);
  const Comparison loss = compare(run, reference, losses);
  CHECK_FALSE(loss.equal());
  CHECK(to_text(loss).find("DIFFERENT from those of the unsharded reference: 0 of 14 912; 1 of 4 "
                           "losses differ") != std::string::npos);

  float& weight = run.weights[1][block::wqkv][17];
  weight = std::nextafter(weight, 100.0F);
  const Comparison both = compare(run, reference, losses);
  CHECK_FALSE(both.equal());
  CHECK(both.numel_different == 1);
  CHECK(both.first_different.starts_with("block.0.wqkv[17] is "));
  CHECK(to_text(both).find("bitwise equal") == std::string::npos);
}

TEST_CASE("on a terminal the progress overwrites its line") {
  std::ostringstream out;
  Options options;
  options.steps = 30;
  Progress terminal(options, out, true);
  for (int step = 0; step < 30; ++step) {
    terminal.show({2.5, Seconds{0.5}, step + 1});
  }
  terminal.finish();
  const std::string text = out.str();
  CHECK(std::ranges::count(text, '\r') == 30);
  CHECK(std::ranges::count(text, '\n') == 1);
  CHECK(text.find("\r  step 30 of 30   loss 2.5000   4 096 tokens/s") != std::string::npos);

  out.str("");
  Progress lines(options, out, false);
  for (int step = 0; step < 30; ++step) {
    lines.show({2.5, Seconds{0.5}, step + 1});
  }
  lines.finish();
  CHECK(std::ranges::count(out.str(), '\n') == 11);  // the first step, then every third
}

TEST_CASE("a text that cannot be read is one line and code 2, divergence one line and code 1") {
  Options missing = options_of(4);
  missing.data = "/no/such/text";
  std::ostringstream out;
  std::ostringstream err;
  CHECK(run_demo(missing, out, err, false) == 2);
  CHECK(out.str().empty());
  CHECK(err.str() == "gpt: cannot read the text at /no/such/text: No such file or directory\n");

  Options diverging = options_of(4);
  diverging.steps = 1000;
  diverging.optimizer = {.kind = OptimizerOptions::Kind::sgd, .lr = 100};
  const Output output = run(diverging);
  CHECK(output.exit_code == 1);
  CHECK(output.err.starts_with("gpt: training diverged: the loss of step "));
  CHECK(std::ranges::count(output.err, '\n') == 1);
}

}  // namespace gpt::test
