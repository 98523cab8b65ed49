/// Orders of layer events as text.
#include "troupe/layers/order_file.hpp"

#include "random_order.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace troupe::test {
namespace {

using Kind = LayerEvent::Kind;

/// Names that are words, and names that are not.
Model model() {
  Model model;
  for (const char* name : {"embed", "block.0", "block.1", "end", "begin", "forward", "micro_batch",
                           "with blank", "#1", "a#b", "say \"hi\"", "back\\slash", "two\nlines",
                           " leads", "trails ", "\"", "über", "a \\n b"}) {
    model.add_unit(name);
  }
  return model;
}

LayerOrder parsed(std::string_view text) {
  const auto order = parse_order(text, model());
  const std::string failure = order ? "" : order.failure().text;
  CHECK(failure == "");
  return order ? order.value() : LayerOrder{};
}

std::string refusal(std::string_view text) {
  const auto order = parse_order(text, model());
  if (order) {
    return {};
  }
  CHECK(order.failure().code == ErrorCode::bad_configuration);
  return order.failure().text;
}

TEST_CASE("every kind of line is read") {
  CHECK(parsed("micro_batch\n"
               "  forward embed\n"
               "  begin backward block.1\n"
               "    forward block.0\n"
               "  end\n"
               "eval\n"
               "  begin forward embed\n"
               "  end\n"
               "end\n") == LayerOrder{{Kind::micro_batch},
                                      {Kind::use, 0, false},
                                      {Kind::end},
                                      {Kind::use, 2, true},
                                      {Kind::use, 1, false},
                                      {Kind::end},
                                      {Kind::end},
                                      {Kind::eval},
                                      {Kind::use, 0, false},
                                      {Kind::end},
                                      {Kind::end}});
}

TEST_CASE("comments, blank lines, indentation, line ends and a missing last one mean nothing") {
  const LayerOrder expected{{Kind::micro_batch}, {Kind::use, 1, false}, {Kind::end}};
  CHECK(parsed("micro_batch\nforward block.0") == expected);
  CHECK(parsed("# first\n\n \t micro_batch # here\r\n\t\n#\nforward\tblock.0   #x\r\n") ==
        expected);
  CHECK(parsed("") == LayerOrder{});
  CHECK(parsed("\n\n# nothing\n") == LayerOrder{});
}

TEST_CASE("a unit may be named like a word of the format") {
  CHECK(
      parsed("micro_batch\nforward end\nforward forward\nforward begin\nbegin forward micro_batch\n"
             "end\n")
          .at(3) == LayerEvent{Kind::use, 5, false});
}

TEST_CASE("a name that is not one word stands in quotes") {
  CHECK(parsed("eval\nforward \"with blank\"\nend\n").at(1).unit == 7);
  CHECK(parsed("eval\nforward \"#1\"# why\nend\n").at(1).unit == 8);
  CHECK(parsed("eval\nforward a#b\nend\n").at(1).unit == 9);
  CHECK(parsed("eval\nforward \"say \\\"hi\\\"\"\nend\n").at(1).unit == 10);
  CHECK(parsed("eval\nforward back\\slash\nend\n").at(1).unit == 11);
  CHECK(parsed("eval\nforward \"back\\\\slash\"\nend\n").at(1).unit == 11);
  CHECK(parsed("eval\nforward \"two\\nlines\"\nend\n").at(1).unit == 12);
}

TEST_CASE(
    "a text that cannot be read is refused with the line, what was found and what is expected") {
  struct Row {
    std::string text;
    std::string says;
  };
  const std::vector<Row> rows{
      {"micro_batch\nforwrd embed\n",
       "line 2: found 'forwrd'; expected micro_batch, forward NAME, backward NAME, begin forward "
       "NAME, begin backward NAME, eval or end"},
      {"micro_batch\nforward\n", "line 2: found 'forward'; expected the name of a unit behind it"},
      {"micro_batch\nbegin  backward # x\n",
       "line 2: found 'begin  backward'; expected the name of a unit behind it"},
      {"begin\n", "line 1: found 'begin'; expected 'begin forward NAME' or 'begin backward NAME'"},
      {"begin eval\n",
       "line 1: found 'begin eval'; expected 'begin forward NAME' or 'begin backward NAME'"},
      {"\n# x\nmicro_batch\n  forward blok.0\n",
       "line 4: found 'forward blok.0'; expected a unit of the model, but there is no unit "
       "'blok.0'; nearest: 'block.0', 'block.1', 'begin'"},
      {"micro_batch 3\n", "line 1: found '3' behind 'micro_batch'; expected nothing more"},
      {"micro_batch\n forward embed again # x\n",
       "line 2: found 'again' behind 'forward embed'; expected nothing more"},
      {"eval\nbegin forward embed x\n",
       "line 2: found 'x' behind 'begin forward embed'; expected nothing more"},
      {"eval\nend eval\n", "line 2: found 'eval' behind 'end'; expected nothing more"},
      {"eval\nforward \"em\\\"bed\nend\n", "line 2: found \"em\\\"bed; expected a closing quote"},
      {"eval\nforward \"embed\\\nend\n", "line 2: found \"embed\\; expected a closing quote"},
      {"micro_batch\nforward embed\nend\n",
       "line 3: found 'end' with nothing to end; expected a begun use or an eval before it (a "
       "micro-batch lasts until the next one)"},
      {"forward embed # early\n",
       "line 1: found 'forward embed' outside a micro-batch and eval; expected 'micro_batch' or "
       "'eval' first"},
      {"eval\nend\n  begin  backward embed\n",
       "line 3: found 'begin  backward embed' outside a micro-batch and eval; expected "
       "'micro_batch' or 'eval' first"},
      {"micro_batch\neval\nbegin forward embed\nbackward embed\n",
       "line 4: found 'backward embed' inside the eval begun in line 2; expected only forwards "
       "until the 'end' of that"},
      {"micro_batch\nbegin backward embed\nmicro_batch\n",
       "line 3: found 'micro_batch' inside the backward begun in line 2; expected the 'end' of "
       "that first"},
      {"eval\nmicro_batch\n",
       "line 2: found 'micro_batch' inside the eval begun in line 1; expected the 'end' of that "
       "first"},
      {"eval\nbegin forward embed\neval\n",
       "line 3: found 'eval' inside the eval begun in line 1; expected the 'end' of that first"},
      {"micro_batch\n\nbegin forward embed\nforward block.0\n\n",
       "line 5: found the end of the order inside the forward begun in line 3; expected the 'end' "
       "of that first"},
      {"eval\nbegin forward embed\nend\n",
       "line 3: found the end of the order inside the eval begun in line 1; expected the 'end' of "
       "that first"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(refusal(row.text) == "order of layer events, " + row.says);
  }
}

TEST_CASE("an order is written with a use that holds nothing on one line") {
  const LayerOrder order = parsed(
      "micro_batch\nbegin forward block.0\nbegin forward \"with blank\"\nend\nend\n"
      "eval\nforward end\nend\n");
  CHECK(format_order(order, model()) ==
        "micro_batch\n"
        "begin forward block.0\n"
        "  forward \"with blank\"\n"
        "end\n"
        "eval\n"
        "  forward end\n"
        "end\n");
}

TEST_CASE("what is written is read as the same order, whatever the order and the names") {
  const Model names = model();
  std::size_t events = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const LayerOrder order = random_order(random, names.units().size());
    REQUIRE(check_order(order).ok());
    const std::string text = format_order(order, names);
    const auto again = parse_order(text, names);
    REQUIRE_MESSAGE(again.ok(), text);
    REQUIRE_MESSAGE(again.value() == order, text);
    events += order.size();
  }
  CHECK(events > 20'000);
}

TEST_CASE("an order that no text can stand for is refused when it is written") {
  const auto error = [](const LayerOrder& order) {
    try {
      return format_order(order, model());
    } catch (const Error& thrown) {
      return std::string(thrown.what());
    }
  };
  CHECK(error({{Kind::micro_batch}, {Kind::end}}) ==
        "order of layer events: event 2 is an end with nothing to end; expected a begun use or an "
        "eval before it (a micro-batch lasts until the next one)");
  CHECK(error({{Kind::use, 3, true}}) ==
        "order of layer events: event 1 is a backward of unit 3 outside a micro-batch and eval; "
        "expected 'micro_batch' or 'eval' first");
  CHECK(error({{Kind::micro_batch}, {Kind::use, 3, true}}) ==
        "order of layer events: it ends inside the backward begun in event 2; expected the 'end' "
        "of that first");
  CHECK(error({{Kind::eval}, {Kind::use, 18, false}, {Kind::end}, {Kind::end}}) ==
        "order of layer events: event 2 uses unit 18, but the model has 18 units");
}

TEST_CASE("an order is made from what a schedule has recorded") {
  const LayerOrder order =
      training_order({{{0, Pass::forward}, {0, Pass::backward}}, {{1, Pass::recompute}}});
  CHECK(format_order(order, model()) ==
        "micro_batch\nforward embed\nbackward embed\nmicro_batch\nforward block.0\n");
  CHECK(training_order({}).empty());
  CHECK(format_order(eval_order({{{0, Pass::forward}, {2, Pass::forward}}}), model()) ==
        "eval\n  forward embed\n  forward block.1\nend\n");
}

TEST_CASE("a file is read like a text, and its failures name it") {
  const std::string path =
      "order_file_test." + std::to_string(doctest::getContextOptions()->rand_seed) + ".order";
  const auto write = [&](const char* text) { std::ofstream(path) << text; };
  write("micro_batch\nforward embed\n");
  const auto good = read_order_file(path, model());
  write("micro_batch\nforward embd\n");
  const auto bad = read_order_file(path, model());
  std::remove(path.c_str());
  const auto missing = read_order_file(path, model());
  const auto folder = read_order_file(".", model());

  REQUIRE(good.ok());
  CHECK(good.value() == parsed("micro_batch\nforward embed\n"));
  REQUIRE(!bad.ok());
  CHECK(bad.failure().text.starts_with("'" + path + "', line 2: found 'forward embd'; expected"));
  REQUIRE(!missing.ok());
  CHECK(missing.failure().text ==
        "cannot read '" + path + "'; expected a file with an order of layer events");
  CHECK(missing.failure().code == ErrorCode::bad_configuration);
  REQUIRE(!folder.ok());
  CHECK(folder.failure().text == "cannot read '.'; expected a file with an order of layer events");
}

}  // namespace
}  // namespace troupe::test
