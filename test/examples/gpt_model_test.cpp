// Tests of examples/gpt/model.hpp.
#include "gpt_fixture.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <sstream>

namespace gpt::test {

TEST_CASE("the default model has embed, six blocks and head") {
  const auto specs = units({});
  REQUIRE(specs.size() == 8);
  CHECK(specs.front().name == "embed");
  CHECK(specs[1].name == "block.0");
  CHECK(specs[6].name == "block.5");
  CHECK(specs.back().name == "head");
  CHECK(full_name(specs[1], specs[1].parameters[block::wqkv]) == "block.0.wqkv");
  // 12 w^2 + 13 w per block, two tables of 256 rows and one of 128, one norm at the end.
  int64_t total = 0;
  for (const auto& unit : specs) {
    for (const auto& parameter : unit.parameters) {
      total += numel(parameter);
    }
  }
  CHECK(total == 6 * (12 * 128 * 128 + 13 * 128) + (256 + 256 + 128 + 2) * 128);
  CHECK(numel_max(specs) == 4 * 128 * 128);
}

TEST_CASE("the enumerators are the places of the parameters") {
  const auto specs = units({.layers = 1});
  REQUIRE(specs[0].parameters.size() == embed::count);
  REQUIRE(specs[1].parameters.size() == block::count);
  REQUIRE(specs[2].parameters.size() == head::count);
  CHECK(specs[0].parameters[embed::pos].name == "pos");
  CHECK(specs[1].parameters[block::ln1_g].name == "ln1_g");
  CHECK(specs[1].parameters[block::bo].name == "bo");
  CHECK(specs[1].parameters[block::w_up].name == "w_up");
  CHECK(specs[1].parameters[block::w_up].shape == std::vector<int64_t>{512, 128});
  CHECK(specs[1].parameters[block::b_down].name == "b_down");
  CHECK(specs[2].parameters[head::w_out].name == "w_out");
}

TEST_CASE("a config that cannot be used is answered with one line that names the size") {
  const auto message = [](const Config& config) { return validate(config).value_or(""); };
  CHECK(message({}).empty());
  CHECK(message({.layers = 0}) == "layers is 0, must be from 1 to 1024");
  CHECK(message({.batch = -1}) == "batch is -1, must be from 1 to 16384");
  CHECK(message({.width = 128, .heads = 3}) == "heads 3 does not divide width 128");
  CHECK(message({.width = 16384, .sequence = 16384, .batch = 8}).find("too large") !=
        std::string::npos);
  CHECK(message({.layers = 1, .width = 1, .heads = 1, .sequence = 1, .batch = 1}).empty());
  CHECK_THROWS_AS(Network({.layers = 0}), std::invalid_argument);
}

TEST_CASE("initial values depend on seed, name and index alone") {
  const ParameterSpec spec{"w", {100, 10}, ParameterSpec::Init::normal, 0.5F};
  const auto values = [&](const std::string& name, uint64_t seed, size_t numel, int64_t first) {
    std::vector<float> out(numel);
    initialize(spec, name, seed, out, first);
    return out;
  };
  const auto whole = values("a.w", 1, 1000, 0);
  CHECK(whole == values("a.w", 1, 1000, 0));
  CHECK(whole != values("b.w", 1, 1000, 0));
  CHECK(whole != values("a.w", 2, 1000, 0));
  // Shards of 3 ranks put together are the whole.
  std::vector<float> joined;
  for (const auto& [first, numel] : {std::pair{0, 334}, {334, 334}, {668, 332}}) {
    const auto shard = values("a.w", 1, static_cast<size_t>(numel), first);
    joined.insert(joined.end(), shard.begin(), shard.end());
  }
  CHECK(joined == whole);
}

TEST_CASE("initial values have the distribution the spec asks for") {
  std::vector<float> out(100'000, 7.0F);
  initialize({"w", {100'000}, ParameterSpec::Init::normal, 0.02F}, "w", 3, out);
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  for (const float x : out) {
    const double z = static_cast<double>(x) / 0.02;
    sum += z;
    squares += z * z;
    fourths += z * z * z * z;
  }
  // Four standard errors at 100,000 values: 1, sqrt(2) and sqrt(96) times 4 / sqrt(100,000).
  CHECK(std::abs(sum / 1e5) < 0.013);
  CHECK(std::abs(squares / 1e5 - 1) < 0.018);
  CHECK(std::abs(fourths / 1e5 - 3) < 0.13);

  initialize({"b", {10}, ParameterSpec::Init::zeros, 0}, "b", 3, std::span(out).first(10));
  initialize({"g", {10}, ParameterSpec::Init::ones, 0}, "g", 3, std::span(out).subspan(10, 10));
  CHECK(out[9] == 0.0F);
  CHECK(out[10] == 1.0F);
}

TEST_CASE("residual projections start smaller by the root of twice the layers") {
  const auto specs = units({.layers = 8});
  const auto& parameters = specs[1].parameters;
  CHECK(parameters[block::wqkv].stddev == 0.02F);
  CHECK(parameters[block::w_up].stddev == 0.02F);
  CHECK(parameters[block::wo].stddev == 0.005F);
  CHECK(parameters[block::w_down].stddev == 0.005F);
}

TEST_CASE("the model and the reference trainer include nothing of the library") {
  for (const char* name :
       {"attention.cpp", "blas_check.cpp", "blas_check.hpp", "buffer.hpp", "corpus.cpp",
        "corpus.hpp", "hash.hpp", "model.cpp", "model.hpp", "network.cpp", "network.hpp", "ops.cpp",
        "ops.hpp", "reference.cpp", "reference.hpp", "vector_math.hpp"}) {
    std::ifstream in(std::string(TROUPE_SOURCE_DIR) + "/examples/gpt/" + name);
    std::stringstream text;
    text << in.rdbuf();
    CAPTURE(name);
    CHECK(text.str().find("#include") != std::string::npos);
    CHECK(text.str().find("troupe") == std::string::npos);
  }
}

}  // namespace gpt::test
