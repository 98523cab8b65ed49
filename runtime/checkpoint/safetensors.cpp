#include "troupe/runtime/checkpoint/safetensors.hpp"

#include "troupe/core/text.hpp"
#include "troupe/runtime/checkpoint/json.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace troupe {

namespace {

using detail::concat;

constexpr std::int64_t length_bytes = 8;
constexpr std::int64_t header_bytes_max = 100'000'000;
constexpr std::int64_t alignment = 8;
constexpr std::string_view metadata_key = "__metadata__";
constexpr std::array<std::pair<TensorType, std::string_view>, 3> type_names{
    {{TensorType::f32, "F32"}, {TensorType::bf16, "BF16"}, {TensorType::u8, "U8"}}};

Failure damaged(std::string text) {
  return detail::failure(ErrorCode::storage, std::move(text));
}

Failure tensor_damaged(std::string_view name, const std::string& what) {
  return damaged(concat("tensor '", name, "': ", what));
}

std::optional<std::int64_t> product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
}

/// Not negative, and no larger than what a file can have.
std::optional<std::int64_t> count_in(const Json& value) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() >
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return value.get<std::int64_t>();
}

Result<StoredTensor> parse_tensor(std::string_view name,
                                  const Json& value,
                                  std::int64_t data_begin,
                                  std::int64_t data_bytes) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return tensor_damaged(name, "expected an object of dtype, shape and data_offsets");
  }
  StoredTensor tensor;
  const Json& dtype = value["dtype"];
  const auto type = std::ranges::find_if(
      type_names, [&](const auto& each) { return dtype.is_string() && dtype == each.second; });
  if (type == type_names.end()) {
    return tensor_damaged(name, "dtype is " + dtype.dump(-1, ' ', true, replace_bad_utf8) +
                                    R"(, expected "F32", "BF16" or "U8")");
  }
  tensor.type = type->first;
  if (!value["shape"].is_array()) {
    return tensor_damaged(name, "shape is no array");
  }
  std::optional<std::int64_t> bytes = size_of(tensor.type);
  tensor.numel = 1;
  for (const Json& each : value["shape"]) {
    const auto extent = count_in(each);
    bytes = extent && bytes ? product(*bytes, *extent) : std::nullopt;
    if (!bytes) {
      return tensor_damaged(name,
                            "shape has an extent that is no count, or more elements than a "
                            "file can hold");
    }
    tensor.shape.push_back(*extent);
    tensor.numel *= *extent;
  }
  const Json& offsets = value["data_offsets"];
  const auto begin =
      offsets.is_array() && offsets.size() == 2 ? count_in(offsets[0]) : std::nullopt;
  const auto end = begin ? count_in(offsets[1]) : std::nullopt;
  if (!end || *begin > *end) {
    return tensor_damaged(name, "data_offsets is no pair of ascending byte counts");
  }
  if (*end > data_bytes) {
    return tensor_damaged(name, concat("its data end at byte ", *end, " of ", data_bytes));
  }
  if (*end - *begin != *bytes) {
    return tensor_damaged(name, concat("data_offsets has ", *end - *begin, " bytes, expected ",
                                       *bytes, " for its dtype and shape"));
  }
  tensor.offset = data_begin + *begin;
  return tensor;
}

/// Every byte of data belongs to one tensor.
Result<void> check_cover(const StoredTensors& stored, std::int64_t begin, std::int64_t end) {
  struct Place {
    std::int64_t begin, end;
    std::string_view name;
  };
  std::vector<Place> places;
  places.reserve(stored.tensors.size());
  for (const auto& [name, tensor] : stored.tensors) {
    places.push_back({tensor.offset, tensor.offset + tensor.numel * size_of(tensor.type), name});
  }
  std::ranges::sort(places, {},
                    [](const Place& place) { return std::pair(place.begin, place.end); });
  std::int64_t at = begin;
  for (const Place& place : places) {
    if (place.begin != at) {
      return tensor_damaged(
          place.name,
          concat("its data begin at byte ", place.begin - begin, ", expected ", at - begin,
                 place.begin < at ? ": two tensors overlap" : ": a gap in the data"));
    }
    at = place.end;
  }
  if (at != end) {
    return damaged(concat("the tensors end at byte ", at - begin, " of ", end - begin));
  }
  return {};
}

}  // namespace

Result<std::string> safetensors_header(const std::vector<TensorSpec>& tensors,
                                       const TensorMetadata& metadata) {
  // Written name by name: the order of the data is that of the list, in the header too.
  std::set<std::string_view> names;
  std::int64_t offset = 0;
  std::string text = "{";
  const auto add = [&text](std::string_view name, const Json& value) {
    text += text.size() > 1 ? "," : "";
    text += Json(name).dump() + ":" + value.dump();
  };
  try {
    if (!metadata.empty()) {
      add(metadata_key, metadata);
    }
    for (const TensorSpec& tensor : tensors) {
      if (tensor.name == metadata_key || !names.insert(tensor.name).second) {
        return detail::failure(ErrorCode::bad_configuration,
                               "two tensors would be called '" + tensor.name + "'");
      }
      const std::int64_t end = offset + numel(tensor.shape) * size_of(tensor.type);
      const auto type = std::ranges::find(type_names, tensor.type,
                                          &std::pair<TensorType, std::string_view>::first);
      add(tensor.name,
          {{"dtype", type->second}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}});
      offset = end;
    }
  } catch (const Json::exception&) {
    return detail::failure(ErrorCode::bad_configuration, "a name is no UTF-8");
  }
  text += "}";
  while (static_cast<std::int64_t>(text.size()) % alignment != 0) {
    text += ' ';
  }
  std::string length;
  for (unsigned byte = 0; byte < length_bytes; ++byte) {
    length += static_cast<char>(text.size() >> (8U * byte) & 0xffU);
  }
  return length + text;
}

Result<std::int64_t> safetensors_header_bytes(std::string_view first, std::int64_t file_bytes) {
  if (file_bytes < length_bytes || static_cast<std::int64_t>(first.size()) < length_bytes) {
    return damaged(concat("it has ", file_bytes, " bytes, too few for a safetensors file"));
  }
  std::uint64_t length = 0;
  for (unsigned byte = 0; byte < length_bytes; ++byte) {
    length |= std::uint64_t{static_cast<unsigned char>(first[byte])} << (8U * byte);
  }
  if (length > static_cast<std::uint64_t>(header_bytes_max)) {
    return damaged(concat("its header would have ", length, " bytes, expected at most ",
                          header_bytes_max, ": no safetensors file"));
  }
  if (static_cast<std::int64_t>(length) > file_bytes - length_bytes) {
    return damaged(concat("its header would have ", length, " bytes, but the file has ",
                          file_bytes - length_bytes, " after the length"));
  }
  return static_cast<std::int64_t>(length);
}

Result<StoredTensors> parse_safetensors_header(std::string_view header, std::int64_t file_bytes) {
  auto parsed = parse_json(header);
  if (!parsed) {
    return damaged("its header: " + parsed.failure().text);
  }
  const Json json = std::move(parsed).value();
  if (!json.is_object()) {
    return damaged("its header is no JSON object");
  }
  const std::int64_t data_begin = length_bytes + static_cast<std::int64_t>(header.size());
  StoredTensors stored;
  for (const auto& [name, value] : json.items()) {
    if (name == metadata_key) {
      if (!value.is_object() ||
          !std::ranges::all_of(value, [](const Json& each) { return each.is_string(); })) {
        return damaged("its __metadata__ is no object of texts");
      }
      stored.metadata = value.get<TensorMetadata>();
      continue;
    }
    auto tensor = parse_tensor(name, value, data_begin, file_bytes - data_begin);
    if (!tensor) {
      return tensor.failure();
    }
    stored.tensors.emplace(name, std::move(tensor).value());
  }
  if (auto covered = check_cover(stored, data_begin, file_bytes); !covered) {
    return covered.failure();
  }
  return stored;
}

}  // namespace troupe
