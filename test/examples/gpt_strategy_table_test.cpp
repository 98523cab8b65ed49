// Tests of examples/gpt/strategy_table.hpp, and of the demo with all strategies.
#include "gpt_fixture.hpp"
#include <troupe/examples/gpt/demo.hpp>
#include <troupe/examples/gpt/strategy_table.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <sstream>
#include <string>
#include <vector>

namespace gpt::test {

using troupe::Strategy;

TEST_CASE("all strategies are trained against one reference and stand side by side") {
  const TemporaryFolder folder("all");
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "the " + std::to_string(i) + "th line of the text; ";
  }
  Options options;
  options.config = {.layers = 6, .width = 48, .heads = 2, .sequence = 8, .batch = 1};
  options.steps = 3;
  options.all_strategies = true;
  options.data = folder.write("text", text);
  std::ostringstream out;
  std::ostringstream err;
  CHECK(run_demo(options, out, err, false) == 0);
  CHECK(err.str().empty());
  const std::string report = out.str();
  CAPTURE(report);
  const auto cells = [&](const std::string& name) {
    const size_t begin = report.find("\n" + name + " ");
    REQUIRE(begin != std::string::npos);
    std::istringstream line(
        report.substr(begin + 1 + name.size(), report.find('\n', begin + 1) - begin - name.size()));
    std::vector<std::string> words;
    for (std::string word; line >> word;) {
      words.push_back(word);
    }
    return words;
  };
  using Words = std::vector<std::string>;
  CHECK(cells("strategies") ==
        Words{"owner_broadcast", "sharded_optimizer", "full_shard", "unsharded"});
  for (const char* name : {"owner_broadcast", "sharded_optimizer", "full_shard"}) {
    CHECK(report.find(std::string("\nsharded training, ") + name + "\n") != std::string::npos);
  }
  CHECK(report.find("unsharded reference\n") == report.rfind("unsharded reference\n"));
  // The order of launches and 77 parameters; the losses and 11 gathers.
  CHECK(cells("  broadcast") == Words{"78", "1", "0"});
  CHECK(cells("  reduce") == Words{"77", "0", "0"});
  CHECK(cells("  reduce_scatter")[2] == "8");
  CHECK(cells("  all_gather")[2] == "12");
  CHECK(cells("final parameters") ==
        Words{"all", "bitwise", "equal", "all", "bitwise", "equal", "all", "bitwise", "equal"});
  CHECK(cells("losses") == cells("final parameters"));
}

TEST_CASE("the table shows what holds most, sends most and differs") {
  ShardedRun run;
  run.steps = {{.loss = 1, .time = Seconds{0.5}}, {.loss = 1, .time = Seconds{0.25}}};
  run.reports.resize(2);
  run.reports[0].memory.main_gradients = 3'000'000;
  run.reports[1].unsharded.main_gradients = 7'000'000;
  run.reports[1].memory.optimizer = 4'000'000;
  run.reports[0].bytes_sent_last_step = {500'000, 1'000'000};
  run.reports[1].bytes_sent_last_step = {250'000, 1'000'000};
  run.reports[1].waited = std::chrono::milliseconds{1500};
  Comparison equal;
  equal.numel = 5;
  equal.steps = 2;
  Comparison different = equal;
  different.numel_different = 1;
  different.first_different = "head.w_out[0] is 1, the reference's is 2";
  const std::vector<StrategyRun> runs{
      {.strategy = Strategy::sharded_optimizer, .run = run, .comparison = equal},
      {.strategy = Strategy::full_shard, .run = run, .comparison = different}};
  const std::string table = strategy_table(runs);
  CAPTURE(table);
  const auto has = [&](const std::string& line) {
    return ("\n" + table).find("\n" + line + "\n") != std::string::npos;
  };
  CHECK(has("strategies                sharded_optimizer         full_shard          unsharded"));
  CHECK(has("  main gradients                   0.000 MB           0.000 MB           7.000 MB"));
  CHECK(has("  optimizer state                  4.000 MB           4.000 MB           0.000 MB"));
  CHECK(has("bytes sent per step                1.500 MB           1.500 MB"));
  CHECK(has("step time, median                  500.0 ms           500.0 ms"));
  CHECK(has("waited, at most                     1.500 s            1.500 s"));
  CHECK(has("final parameters          all bitwise equal          DIFFERENT"));
  CHECK(has("losses                    all bitwise equal  all bitwise equal"));
  CHECK(table.find("\nfull_shard              differs:\nfinal parameters        DIFFERENT from "
                   "those of the unsharded reference: 1 of 5, first head.w_out[0] is 1") !=
        std::string::npos);
}

}  // namespace gpt::test
