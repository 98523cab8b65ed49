/// The safetensors format by itself: written, read, and damaged.
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

}  // namespace
}  // namespace troupe::test
