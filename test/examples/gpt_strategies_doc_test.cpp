// The numbers in the tables of docs/strategies.md are those of the demo's own model.
#include "gpt_fixture.hpp"
#include <troupe/examples/gpt/sharded.hpp>

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace gpt::test {

namespace {

using troupe::Report;
using troupe::Strategy;

/// The cells of the rows of the first table behind a heading, without its own head.
std::vector<std::vector<std::string>> table_behind(const std::string& heading) {
  std::ifstream page(std::string(TROUPE_SOURCE_DIR) + "/docs/strategies.md");
  std::string line;
  while (std::getline(page, line) && line != heading) {
  }
  std::vector<std::vector<std::string>> rows;
  while (std::getline(page, line) && (rows.empty() || line.starts_with("|"))) {
    if (!line.starts_with("|")) {
      continue;
    }
    auto& cells = rows.emplace_back();
    std::istringstream parts(line.substr(1));
    for (std::string cell; std::getline(parts, cell, '|');) {
      const size_t begin = cell.find_first_not_of(' ');
      cells.push_back(begin == std::string::npos
                          ? ""
                          : cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
    }
  }
  REQUIRE(rows.size() > 2);
  rows.erase(rows.begin(), rows.begin() + 2);
  return rows;
}

std::string megabytes(int64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3f", static_cast<double>(bytes) * 1e-6);
  return text.data();
}

using Variant = void (*)(Options&);

/// Rank 0's report of the demo, but for the batch, on which neither memory nor traffic depends.
const Report& report_of(Variant set, int64_t micro_batches) {
  static std::map<std::pair<Variant, int64_t>, Report> known;
  const auto [found, is_new] = known.try_emplace({set, micro_batches});
  if (is_new) {
    const TemporaryFolder folder("strategies_doc");
    const Corpus corpus = std::get<Corpus>(
        Corpus::load(folder.write("text", std::string(20'000, 'x')), Config{}.sequence));
    Options options;
    options.config.batch = 1;
    options.steps = 2;
    options.micro_batches = micro_batches;
    set(options);
    found->second =
        train_sharded(options, corpus, {}, {.timeout = std::chrono::seconds{60}}).reports[0];
  }
  return found->second;
}

std::string sent_in_step(const Report& report) {
  const auto& sent = report.bytes_sent_last_step;
  return megabytes(static_cast<int64_t>(std::accumulate(sent.begin(), sent.end(), uint64_t{0})));
}

void owner(Options& options) {
  options.strategy = Strategy::owner_broadcast;
}
void owner_fused(Options& options) {
  owner(options);
  options.bucket_bytes = 300'000;
}
void zero2(Options& options) {
  options.strategy = Strategy::sharded_optimizer;
}
void zero1(Options& options) {
  zero2(options);
  options.keep_gradients = true;
}
void full_shard(Options&) {}
void kept(Options& options) {
  options.keep_gathered = true;
}
void regather(Options& options) {
  options.regather = 2;
}
void replicas(Options& options) {
  options.replicas = 2;
}
void replicas_once(Options& options) {
  replicas(options);
  options.sum_at_step_end = true;
}

}  // namespace

TEST_CASE("the page's memory of each strategy is what the demo reports") {
  const auto rows = table_behind("## Memory of a rank");
  REQUIRE(rows.size() == 9);
  CHECK(rows[0].back() == megabytes(report_of(full_shard, 1).unsharded.total()));
  size_t row = 1;
  for (const Variant set :
       {owner, owner_fused, zero2, zero1, full_shard, kept, regather, replicas}) {
    CAPTURE(rows[row].front());
    CHECK(rows[row].back() == megabytes(report_of(set, 1).memory.total()));
    ++row;
  }
}

TEST_CASE("the page's traffic of each strategy is what the demo reports") {
  const auto rows = table_behind("## Communication of a step");
  REQUIRE(rows.size() == 8);
  size_t row = 0;
  for (const Variant set :
       {owner, owner_fused, zero2, full_shard, kept, regather, replicas, replicas_once}) {
    CAPTURE(rows[row].front());
    CHECK(rows[row][3] == sent_in_step(report_of(set, 1)));
    CHECK(rows[row][4] == sent_in_step(report_of(set, 4)));
    ++row;
  }
}

}  // namespace gpt::test
