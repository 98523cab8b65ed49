/// The files of a checkpoint by themselves: safetensors and the index, written, read, and damaged.
#include "troupe/runtime/checkpoint/index.hpp"
#include "troupe/runtime/checkpoint/safetensors.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace troupe::test {
namespace {

/// A file as its bytes: the length, the header as given, data of zeros.
struct File {
  std::string header;
  std::size_t data_bytes = 0;

  std::string error() const {
    const auto bytes = static_cast<std::int64_t>(8 + header.size() + data_bytes);
    const auto parsed = parse_safetensors_header(header, bytes);
    return parsed ? "" : parsed.failure().text;
  }
};

std::string length_error(std::string_view first, std::int64_t file_bytes) {
  const auto length = safetensors_header_bytes(first, file_bytes);
  return length ? "" : length.failure().text;
}

TEST_CASE("a safetensors header is written byte by byte as the format says") {
  const auto header = safetensors_header(
      {{"w", TensorType::f32, {2, 3}}, {"b", TensorType::u8, {1}}}, {{"format", "x"}});
  REQUIRE(header.ok());
  const std::string json =
      R"({"__metadata__":{"format":"x"},"w":{"data_offsets":[0,24],"dtype":"F32","shape":[2,3]},)"
      R"("b":{"data_offsets":[24,25],"dtype":"U8","shape":[1]}})";
  const std::string padding(7 - (json.size() + 7) % 8, ' ');
  const std::string length{static_cast<char>(json.size() + padding.size()), 0, 0, 0, 0, 0, 0, 0};
  CHECK(header.value() == length + json + padding);
  CHECK(header.value().size() % 8 == 0);
}

TEST_CASE("what is written is read") {
  const std::vector<TensorSpec> specs{{"a", TensorType::f32, {2, 3}},
                                      {"scalar", TensorType::f32, {}},
                                      {"empty", TensorType::bf16, {4, 0}},
                                      {"half", TensorType::bf16, {3}},
                                      {"blob", TensorType::u8, {5}}};
  const auto written = safetensors_header(specs, {{"k", "v"}, {"l", ""}});
  REQUIRE(written.ok());
  const std::string& text = written.value();
  const auto bytes = static_cast<std::int64_t>(text.size()) + 24 + 4 + 0 + 6 + 5;
  const auto length = safetensors_header_bytes(std::string_view(text).substr(0, 8), bytes);
  REQUIRE(length.ok());
  CHECK(length.value() == static_cast<std::int64_t>(text.size()) - 8);
  const auto parsed = parse_safetensors_header(std::string_view(text).substr(8), bytes);
  REQUIRE(parsed.ok());
  const StoredTensors& stored = parsed.value();
  CHECK(stored.metadata == TensorMetadata{{"k", "v"}, {"l", ""}});
  REQUIRE(stored.tensors.size() == specs.size());
  std::int64_t offset = static_cast<std::int64_t>(text.size());
  for (const TensorSpec& spec : specs) {
    const StoredTensor& tensor = stored.tensors.at(spec.name);
    CHECK(tensor.type == spec.type);
    CHECK(tensor.shape == spec.shape);
    CHECK(tensor.numel == numel(spec.shape));
    CHECK(tensor.offset == offset);
    offset += tensor.numel * size_of(tensor.type);
  }
}

TEST_CASE("names that cannot be told apart are refused") {
  const auto twice =
      safetensors_header({{"w", TensorType::u8, {1}}, {"w", TensorType::u8, {1}}}, {});
  REQUIRE_FALSE(twice.ok());
  CHECK(twice.failure().text == "two tensors would be called 'w'");
  const auto metadata = safetensors_header({{"__metadata__", TensorType::u8, {1}}}, {});
  REQUIRE_FALSE(metadata.ok());
  CHECK(metadata.failure().text == "two tensors would be called '__metadata__'");
  const auto latin = safetensors_header({{"\xe9", TensorType::u8, {1}}}, {});
  REQUIRE_FALSE(latin.ok());
  CHECK(latin.failure().text == "a name is no UTF-8");
}

TEST_CASE("a hostile length of the header is refused") {
  using namespace std::string_literals;
  CHECK(length_error("\0\0\0"s, 3) == "it has 3 bytes, too few for a safetensors file");
  CHECK(length_error("\x02\0\0\0\0\0\0\0"s, 9) ==
        "its header would have 2 bytes, but the file has 1 after the length");
  CHECK(length_error("\x02\0\0\0\0\0\0\0"s, 10) == "");
  CHECK(length_error("\xff\xff\xff\xff\xff\xff\xff\xff"s, 1000) ==
        "its header would have 18446744073709551615 bytes, expected at most 100000000: no "
        "safetensors file");
  CHECK(length_error("PK\x03\x04\x14\0\0\0"s, 1000) ==
        "its header would have 85966670672 bytes, expected at most 100000000: no safetensors "
        "file");
}

TEST_CASE("a hostile header is refused with what is wrong") {
  const auto one = [](const std::string& value) { return R"({"w":)" + value + "}"; };
  const std::string object = "tensor 'w': expected an object of dtype, shape and data_offsets";
  struct Row {
    std::string header;
    std::size_t data_bytes;
    std::string error;
  };
  const std::vector<Row> rows{
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8, ""},
      {"{}", 0, ""},
      {"", 0, "its header: no JSON at byte 1"},
      {"{\"w\":", 0, "its header: no JSON at byte 6"},
      {"[]", 0, "its header is no JSON object"},
      {std::string(100, '['), 0, "its header: no JSON at byte 101"},
      {R"({"w":)" + std::string(40, '[') + std::string(40, ']') + "}", 0,
       "its header: it is nested more than 16 deep"},
      {R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       0, "its header: the key 'w' is there twice"},
      {R"({"__metadata__":{"a":1}})", 0, "its __metadata__ is no object of texts"},
      {one("3"), 0, object},
      {one(R"({"dtype":"F32","shape":[2]})"), 0, object},
      {one(R"({"dtype":"I64","shape":[1],"data_offsets":[0,8]})"), 8,
       R"(tensor 'w': dtype is "I64", expected "F32", "BF16" or "U8")"},
      {one(R"({"dtype":7,"shape":[1],"data_offsets":[0,8]})"), 8,
       R"(tensor 'w': dtype is 7, expected "F32", "BF16" or "U8")"},
      {one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), 8,
       "tensor 'w': shape is no array"},
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), 8,
       "tensor 'w': shape has an extent that is no count, or more elements than a file can hold"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), 0,
       "tensor 'w': shape has an extent that is no count, or more elements than a file can hold"},
      {one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]})"), 0,
       "tensor 'w': shape has an extent that is no count, or more elements than a file can hold"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), 8,
       "tensor 'w': data_offsets is no pair of ascending byte counts"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), 8,
       "tensor 'w': data_offsets is no pair of ascending byte counts"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8.0]})"), 8,
       "tensor 'w': data_offsets is no pair of ascending byte counts"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 4,
       "tensor 'w': its data end at byte 8 of 4"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})"), 8,
       "tensor 'w': data_offsets has 8 bytes, expected 4 for its dtype and shape"},
      {R"({"v":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "tensor 'w': its data begin at byte 2, expected 4: two tensors overlap"},
      {R"({"v":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})",
       10, "tensor 'w': its data begin at byte 6, expected 4: a gap in the data"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 12,
       "the tensors end at byte 8 of 12"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.header);
    CHECK(File{row.header, row.data_bytes}.error() == row.error);
  }
}

TEST_CASE("no cut and no single changed byte of a header is read out of bounds") {
  const auto written = safetensors_header(
      {{"a", TensorType::f32, {2, 3}}, {"b", TensorType::bf16, {3}}}, {{"k", "v"}});
  REQUIRE(written.ok());
  const std::string header = written.value().substr(8);
  constexpr std::int64_t data_bytes = 30;
  int refused = 0;
  for (std::size_t i = 0; i < header.size(); ++i) {
    const std::string cut = header.substr(0, i);
    const auto without_end =
        parse_safetensors_header(cut, static_cast<std::int64_t>(8 + i) + data_bytes);
    CHECK(without_end.ok() == (i > header.rfind('}')));  // only padding is missing
    for (const char c : {'0', '9', '"', '}', ',', '-', '\0', '\x80'}) {
      std::string changed = header;
      changed[i] = c;
      const std::int64_t bytes = static_cast<std::int64_t>(8 + header.size()) + data_bytes;
      const auto parsed = parse_safetensors_header(changed, bytes);
      if (!parsed) {
        ++refused;
        continue;
      }
      for (const auto& [name, tensor] : parsed.value().tensors) {
        CHECK(tensor.offset >= static_cast<std::int64_t>(8 + header.size()));
        CHECK(tensor.offset + tensor.numel * size_of(tensor.type) <= bytes);
      }
    }
  }
  CHECK(refused > 500);
}

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
