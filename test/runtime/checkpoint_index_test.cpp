/// The index of a checkpoint by itself: written, read, damaged, and compared with a model.
#include "troupe/runtime/checkpoint/index.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace troupe::test {
namespace {

CheckpointIndex an_index() {
  CheckpointIndex index;
  index.step = 12;
  index.world_size = 4;
  index.mesh = {.replicate = 1, .shard = 4, .ep = 2};
  index.strategy = Strategy::sharded_optimizer;
  index.parameters = {
      {.name = "a",
       .shape = {5, 2},
       .dtype = DType::bf16,
       .trainable = false,
       .group = "",
       .pieces = {{0, 0, 4}, {1, 4, 4}, {2, 8, 2}},
       .states = {},
       .counts = {}},
      {.name = "e",
       .shape = {6},
       .group = "ep",
       .pieces = {{0, 0, 3}, {1, 0, 4}, {2, 3, 3}, {3, 4, 2}},
       .states = {"adamw.m", "adamw.v"},
       .counts = {{"adamw.step", 12}}},
      {.name = "none", .shape = {0}, .group = "", .pieces = {}, .states = {}, .counts = {}}};
  index.files = {{100, 1}, {200, ~std::uint64_t{0}}, {0, 0}, {7, 255}};
  return index;
}

/// The error of an index in which one text is replaced, its checksum made right again or not.
std::string index_error(const std::string& from, const std::string& to) {
  std::string text = to_json(an_index()).value();
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  const auto parsed = parse_index(text);
  return parsed ? "" : parsed.failure().text;
}

TEST_CASE("an index is read as it was written") {
  const auto text = to_json(an_index());
  REQUIRE(text.ok());
  const auto parsed = parse_index(text.value());
  REQUIRE_MESSAGE(parsed.ok(), (parsed.ok() ? "" : parsed.failure().text));
  CHECK(parsed.value() == an_index());
}

TEST_CASE("an index that is damaged, foreign or of another version is refused") {
  const std::string checksum = "its checksum is another than its contents have";
  CHECK(index_error("\"step\": 12", "\"step\": 13") == checksum);
  CHECK(index_error("\"numel\": 3", "\"numel\": 2") == checksum);
  CHECK(index_error("\"troupe checkpoint\"", "\"other\"") == "it is no troupe checkpoint");
  CHECK(index_error("\"version\": 1", "\"version\": 0") ==
        "it is of version 0; this build reads version 1");
  CHECK(index_error("\"version\": 1", "\"version\": 2") ==
        "it is of version 2; this build reads version 1");
  CHECK(index_error("\"contents\"", "\"content\"") == "'contents' is missing");
  CHECK(parse_index("").failure().text == "no JSON at byte 1");
  CHECK(parse_index("[]").failure().text == "'contents' is missing");
  CHECK(parse_index("{\"contents\": {\"format\": 1}}").failure().text == "'format' is no text");
  const std::string whole = to_json(an_index()).value();
  for (std::size_t bytes = 0; bytes + 2 < whole.size(); bytes += 7) {
    CHECK_FALSE(parse_index(std::string_view(whole).substr(0, bytes)).ok());
  }
}

/// The error of an index that was written like this, with the right checksum.
std::string error_of(const CheckpointIndex& index) {
  const auto parsed = parse_index(to_json(index).value());
  return parsed ? "" : parsed.failure().text;
}

TEST_CASE("an index whose parts do not fit each other is refused") {
  CheckpointIndex index = an_index();
  index.parameters[0].pieces[1].offset = 5;
  CHECK(error_of(index) == "the pieces of parameter 'a' do not follow each other at element 4");
  index = an_index();
  index.parameters[1].pieces.pop_back();
  CHECK(error_of(index) == "the pieces of parameter 'e' have 4 elements, expected 6");
  index = an_index();
  index.parameters[0].pieces[0].rank = 4;
  CHECK(error_of(index) == "'rank' is no count up to 3");
  index = an_index();
  index.parameters[0].pieces[0].offset = -1;
  CHECK(error_of(index) == "'offset' is no count up to 10");
  index = an_index();
  index.parameters[0].shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  CHECK(error_of(index) == "parameter 'a' has too many elements");
  index = an_index();
  index.parameters[2].name = "a";
  CHECK(error_of(index) == "parameter 'a' is there twice");
  index = an_index();
  index.mesh.replicate = 2;
  CHECK(error_of(index) == "'mesh' does not divide the world size");
  index = an_index();
  index.mesh.ep = 0;
  CHECK(error_of(index) == "'ep' is 0");
  index = an_index();
  index.files.pop_back();
  CHECK(error_of(index) == "'files' has 3 entries, expected 4");
}

TEST_CASE("parts of a parameter are found in the pieces of their coordinate") {
  const CheckpointIndex index = an_index();
  const auto ranks = [&](std::size_t parameter, int coordinate, std::int64_t offset,
                         std::int64_t numel) {
    std::string text;
    for (const Overlap& each :
         locate(index, index.parameters[parameter], coordinate, offset, numel)) {
      text += std::to_string(each.rank) + ":" + std::to_string(each.piece_offset) + "+" +
              std::to_string(each.numel) + ">" + std::to_string(each.wanted_offset) + " ";
    }
    return text;
  };
  CHECK(ranks(0, 0, 0, 10) == "0:0+4>0 1:0+4>4 2:0+2>8 ");
  CHECK(ranks(0, 0, 3, 2) == "0:3+1>0 1:0+1>1 ");
  CHECK(ranks(0, 0, 5, 0) == "");
  CHECK(ranks(1, 0, 2, 2) == "0:2+1>0 2:0+1>1 ");
  CHECK(ranks(1, 1, 2, 4) == "1:2+2>0 3:0+2>2 ");
  CHECK(ranks(2, 0, 0, 0) == "");
}

TEST_CASE("names of steps are read back, and no others") {
  CHECK(step_name(123) == "step-000000123");
  CHECK(step_name(1234567890123) == "step-1234567890123");
  for (const std::uint64_t step : {0ULL, 7ULL, 999999999ULL, 1000000000ULL, ~0ULL}) {
    const auto read = parse_step_name(step_name(step));
    REQUIRE(read.has_value());
    CHECK(read->step == step);
    CHECK(read->finished);
    const auto unfinished = parse_step_name(step_name(step) + ".tmp");
    REQUIRE(unfinished.has_value());
    CHECK_FALSE(unfinished->finished);
  }
  for (const char* name : {"step-1", "step-", "step-0000000001", "step-00000001x", "last", "",
                           "step-000000001.old", "step-99999999999999999999"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_step_name(name).has_value());
  }
}

TEST_CASE("a checkpoint of another model is refused by the parameter that differs") {
  const auto model = [](std::vector<std::pair<std::string, Shape>> parameters,
                        const std::string& group = "ep") {
    Model made;
    for (auto& [name, shape] : parameters) {
      made.add_parameter({.name = name, .shape = shape, .group = name == "e" ? group : ""});
    }
    return made;
  };
  const auto error = [](const Model& made, int ep = 2) {
    const auto checked = check_model(an_index(), made, {.replicate = 1, .shard = 4, .ep = ep});
    return checked ? "" : checked.failure().text;
  };
  CHECK(error(model({{"none", {0}}, {"e", {6}}, {"a", {5, 2}}})) == "");  // in another order
  CHECK(error(model({{"a", {5, 2}}, {"e", {6}}, {"none", {0}}, {"b", {1}}})) ==
        "it has no parameter 'b', which the model has");
  CHECK(error(model({{"a", {5, 2}}, {"e", {6}}})) ==
        "it has a parameter 'none', which the model does not have");
  CHECK(error(model({{"a", {2, 5}}, {"e", {6}}, {"none", {0}}})) ==
        "parameter 'a' has shape (5, 2) in it, the model's is (2, 5)");
  CHECK(error(model({{"a", {5, 2}}, {"e", {6}}, {"none", {0}}}, "")) ==
        "parameter 'e' is of process group 'ep' in it, the model's of ''");
  CHECK(error(model({{"a", {5, 2}}, {"e", {6}}, {"none", {0}}}), 4) ==
        "it was saved with mesh.ep = 2 and has expert parameters ('e'); the runtime has mesh.ep = "
        "4");
}

}  // namespace
}  // namespace troupe::test
