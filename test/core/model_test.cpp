#include "troupe/core/model.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace troupe {
namespace {

/// The text of the `Error` that `call` throws; empty if it throws none.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_configuration);
    return error.what();
  }
  return {};
}

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

TEST_CASE("a model holds units and parameters in registration order") {
  Model model;
  const UnitId embed = model.add_unit("embed");
  const ParameterId tokens = model.add_parameter(embed, {.name = "tokens", .shape = {256, 512}});
  const UnitId block = model.add_unit("block.0");
  const ParameterId wq =
      model.add_parameter(block, {.name = "wq", .shape = {512, 512}, .dtype = DType::bf16});

  CHECK(embed == 0);
  CHECK(block == 1);
  CHECK(tokens == 0);
  CHECK(wq == 1);
  CHECK(model.parameters()[wq].full_name == "block.0.wq");
  CHECK(model.parameters()[wq].unit == block);
  CHECK(model.parameters()[wq].used_by == std::vector<UnitId>{block});
  CHECK(model.parameters()[tokens].numel == 256 * 512);
  CHECK(model.numel_total() == 256 * 512 + 512 * 512);
  CHECK(model.root() == no_unit);
  CHECK(model.unit("block.0") == block);
  CHECK(model.parameter("embed.tokens") == tokens);
}

TEST_CASE("numel of a scalar is 1, and of a shape with a zero extent 0") {
  CHECK(numel({}) == 1);
  CHECK(numel({7}) == 7);
  CHECK(numel({3, 0, 5}) == 0);
  CHECK(numel({2, 3, 4}) == 24);
  CHECK(to_string(Shape{}) == "()");
  CHECK(to_string(Shape{4, 16}) == "(4, 16)");
}

TEST_CASE("the first parameter outside a unit makes the root unit") {
  Model model;
  model.add_unit("embed");
  const ParameterId scale = model.add_parameter({.name = "scale", .shape = {1}});
  const ParameterId shift = model.add_parameter({.name = "shift", .shape = {1}});

  REQUIRE(model.units().size() == 2);
  CHECK(model.root() == 1);
  CHECK(model.units()[1].name == "root");
  CHECK(model.parameters()[scale].full_name == "scale");
  CHECK(model.parameters()[shift].unit == model.root());
  CHECK(model.parameter("shift") == shift);
}

TEST_CASE("ancestors are the chain of parents and the root unit") {
  Model model;
  const UnitId layer = model.add_unit("layer");
  const UnitId attention = model.add_unit("layer.attention", layer);
  const UnitId core = model.add_unit("layer.attention.core", attention);
  CHECK(model.ancestors(core) == std::vector<UnitId>{attention, layer});
  CHECK(model.ancestors(layer).empty());

  model.add_parameter({.name = "scale", .shape = {1}});
  CHECK(model.ancestors(core) == std::vector<UnitId>{attention, layer, model.root()});
  CHECK(model.ancestors(layer) == std::vector<UnitId>{model.root()});
  CHECK(model.ancestors(model.root()).empty());

  const UnitId child_of_root = model.add_unit("child", model.root());
  CHECK(model.ancestors(child_of_root) == std::vector<UnitId>{model.root()});
}

TEST_CASE("a tied parameter has one id and two names") {
  Model model;
  const UnitId embed = model.add_unit("embed");
  const ParameterId tokens = model.add_parameter(embed, {.name = "tokens", .shape = {8, 4}});
  const UnitId head = model.add_unit("head");
  const UnitId probe = model.add_unit("probe");
  model.tie(probe, "out", embed, "tokens");
  model.tie(head, "out", embed, "tokens");

  CHECK(model.parameters().size() == 1);
  CHECK(model.parameters()[tokens].used_by == std::vector<UnitId>{embed, head, probe});
  REQUIRE(model.units()[head].parameters.size() == 1);
  CHECK(model.units()[head].parameters[0].name == "out");
  CHECK(model.units()[head].parameters[0].parameter == tokens);
  CHECK(model.parameter("head.out") == tokens);
  CHECK(model.numel_total() == 32);
}

TEST_CASE("a unit without parameters is allowed") {
  Model model;
  model.add_unit("dropout");
  CHECK(model.units()[0].parameters.empty());
}

TEST_CASE("what is wrong with a unit is named, and nothing is added") {
  Model model;
  model.add_unit("embed");
  CHECK(mentions(error_of([&] { model.add_unit(""); }), "a unit needs a name"));
  CHECK(mentions(error_of([&] { model.add_unit("embed"); }), "unit 'embed' exists already (id 0)"));
  const std::string parent = error_of([&] { model.add_unit("child", 5); });
  CHECK(mentions(parent, "parent of unit 'child'"));
  CHECK(mentions(parent, "there is no unit 5; the model has 1 unit, ids 0 to 0"));
  CHECK(model.units().size() == 1);
}

TEST_CASE("what is wrong with a parameter is named, and nothing is added") {
  Model model;
  const UnitId block = model.add_unit("block");
  model.add_parameter(block, {.name = "w", .shape = {2}});
  const auto add = [&](UnitId unit, const ParameterSpec& spec) {
    return error_of([&] { model.add_parameter(unit, spec); });
  };
  CHECK(mentions(add(block, {.name = "", .shape = {2}}), "unit 'block' needs a name"));
  CHECK(mentions(add(block, {.name = "w", .shape = {2}}), "'block.w' exists already"));
  CHECK(mentions(add(9, {.name = "v", .shape = {2}}), "unit of parameter 'v': there is no unit 9"));
  const std::string negative = add(block, {.name = "v", .shape = {3, -1}});
  CHECK(mentions(negative, "'block.v' has shape (3, -1)"));
  CHECK(mentions(negative, "expected 0 or more"));
  CHECK(mentions(add(block, {.name = "v", .shape = {1L << 40, 1L << 40}}), "more than 2^48"));
  CHECK(add(block, {.name = "empty", .shape = {1L << 40, 1L << 40, 0}}).empty());
  CHECK(model.parameters().size() == 2);
}

TEST_CASE("full names are unique over all units") {
  Model model;
  const UnitId outer = model.add_unit("a");
  const UnitId inner = model.add_unit("a.b");
  model.add_parameter(inner, {.name = "w", .shape = {1}});
  const std::string clash =
      error_of([&] { model.add_parameter(outer, {.name = "b.w", .shape = {1}}); });
  CHECK(mentions(clash, "'a.b.w' exists already (parameter 0 of unit 'a.b')"));
  const std::string root_clash =
      error_of([&] { model.add_parameter({.name = "a.b.w", .shape = {1}}); });
  CHECK(mentions(root_clash, "exists already"));
  CHECK(model.root() == no_unit);
}

TEST_CASE("a unit of the name root stands in the way of the root unit") {
  Model model;
  model.add_unit("root");
  CHECK(mentions(error_of([&] { model.add_parameter({.name = "scale", .shape = {1}}); }),
                 "would make the unit 'root', but a unit of that name exists"));

  Model other;
  other.add_parameter({.name = "scale", .shape = {1}});
  CHECK(
      mentions(error_of([&] { other.add_unit("root"); }), "made for parameters outside any unit"));
}

TEST_CASE("what is wrong with a tie is named, and nothing is tied") {
  Model model;
  const UnitId embed = model.add_unit("embed");
  model.add_parameter(embed, {.name = "tokens", .shape = {4}});
  model.add_parameter(embed, {.name = "positions", .shape = {4}});
  const UnitId head = model.add_unit("head");
  const auto tie = [&](UnitId unit, const std::string& name, UnitId owner, const char* of) {
    return error_of([&] { model.tie(unit, name, owner, of); });
  };
  const std::string missing = tie(head, "out", embed, "token");
  CHECK(mentions(missing, "unit 'embed' has no parameter 'token'; nearest: 'tokens', 'positions'"));
  CHECK(mentions(tie(embed, "again", embed, "tokens"), "both are in one unit"));
  CHECK(mentions(tie(head, "", embed, "tokens"), "needs a name"));
  CHECK(mentions(tie(7, "out", embed, "tokens"), "there is no unit 7"));
  CHECK(mentions(tie(head, "out", 7, "tokens"), "there is no unit 7"));
  CHECK(mentions(tie(embed, "out", head, "w"), "has no parameter 'w'; there is none"));
  CHECK(model.units()[head].parameters.empty());

  model.tie(head, "out", embed, "tokens");
  CHECK(mentions(tie(head, "out2", embed, "tokens"), "unit 'head' uses 'embed.tokens' already"));
  CHECK(mentions(tie(head, "out", embed, "positions"), "'head.out' exists already"));
}

TEST_CASE("an unknown name is answered with the nearest ones") {
  Model model;
  for (const char* name : {"embed", "block.0", "block.1", "head"}) {
    model.add_parameter(model.add_unit(name), {.name = "w", .shape = {1}});
  }
  CHECK(mentions(error_of([&] { static_cast<void>(model.unit("block_1")); }),
                 "no unit 'block_1'; nearest: 'block.1', 'block.0', "));
  CHECK(mentions(error_of([&] { static_cast<void>(model.parameter("head.v")); }),
                 "no parameter 'head.v'; nearest: 'head.w', "));
  CHECK(mentions(error_of([] { static_cast<void>(Model().unit("x")); }), "there is none"));
}

}  // namespace
}  // namespace troupe
