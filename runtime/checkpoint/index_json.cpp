// The index as JSON:
//
//     {"contents": {"format": "troupe checkpoint", "version": 1, "step": 3, "world_size": 2,
//                   "strategy": "full_shard", "mesh": {"replicate": 1, "shard": 2, "ep": 1},
//                   "parameters": [{"name": "L0.w", "shape": [5], "dtype": "fp32",
//                                   "trainable": true, "group": "",
//                                   "pieces": [{"rank": 0, "offset": 0, "numel": 3}, …],
//                                   "states": ["adamw.m", "adamw.v"],
//                                   "counts": {"adamw.step": 3}}, …],
//                   "files": [{"bytes": 200, "xxh3": "0123456789abcdef"}, …]},
//      "xxh3": "…"}          of the contents, written by themselves without spaces
#include "troupe/core/text.hpp"
#include "troupe/runtime/checkpoint/index.hpp"
#include "troupe/runtime/checkpoint/json.hpp"
#include "troupe/runtime/checkpoint/storage.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>

namespace troupe {

namespace {

using detail::concat;

constexpr std::string_view format_name = "troupe checkpoint";
constexpr std::int64_t world_size_max = 1 << 20;

Failure damaged(std::string text) {
  return detail::failure(ErrorCode::storage, std::move(text));
}

std::string hex(std::uint64_t number) {
  std::array<char, 17> digits{};
  static_cast<void>(std::snprintf(digits.data(), digits.size(), "%016llx",
                                  static_cast<unsigned long long>(number)));
  return digits.data();
}

/// What is not as it should be; turned into a Failure where the reading began.
struct Damage {
  std::string text;
};

const Json& member(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) {
    throw Damage{concat("'", key, "' is missing")};
  }
  return object[key];
}

std::int64_t count_in(const Json& value, const char* key, std::int64_t max) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(max)) {
    throw Damage{concat("'", key, "' is no count up to ", max)};
  }
  return value.get<std::int64_t>();
}

std::int64_t count(const Json& object,
                   const char* key,
                   std::int64_t max = std::numeric_limits<std::int64_t>::max()) {
  return count_in(member(object, key), key, max);
}

std::string text(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_string()) {
    throw Damage{concat("'", key, "' is no text")};
  }
  return value.get<std::string>();
}

const Json& list(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_array()) {
    throw Damage{concat("'", key, "' is no list")};
  }
  return value;
}

std::uint64_t hash_in(const Json& object) {
  const std::string digits = text(object, "xxh3");
  if (digits.size() != 16 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw Damage{"'xxh3' is not 16 hexadecimal digits"};
  }
  return std::stoull(digits, nullptr, 16);
}

Json to_json(const IndexedParameter& parameter) {
  Json pieces = Json::array();
  for (const IndexedPiece& piece : parameter.pieces) {
    pieces.push_back({{"rank", piece.rank}, {"offset", piece.offset}, {"numel", piece.numel}});
  }
  return {{"name", parameter.name},     {"shape", parameter.shape},
          {"group", parameter.group},   {"dtype", to_string(parameter.dtype)},
          {"pieces", pieces},           {"trainable", parameter.trainable},
          {"states", parameter.states}, {"counts", parameter.counts}};
}

/// The pieces of each coordinate follow each other and make up the parameter.
void check_pieces(const IndexedParameter& parameter, std::int64_t numel, const DeviceMesh& mesh) {
  const int coordinates = parameter.group == expert_group ? mesh.ep : 1;
  for (int coordinate = 0; coordinate < coordinates; ++coordinate) {
    std::vector<IndexedPiece> pieces;
    std::ranges::copy_if(parameter.pieces, std::back_inserter(pieces),
                         [&](const IndexedPiece& piece) {
                           return coordinate_of(piece.rank, mesh, parameter.group) == coordinate;
                         });
    std::ranges::sort(pieces, {}, &IndexedPiece::offset);
    std::int64_t at = 0;
    for (const IndexedPiece& piece : pieces) {
      if (piece.offset != at) {
        throw Damage{concat("the pieces of parameter '", parameter.name,
                            "' do not follow each "
                            "other at element ",
                            at)};
      }
      at += piece.numel;
    }
    if (at != numel) {
      throw Damage{concat("the pieces of parameter '", parameter.name, "' have ", at,
                          " elements, expected ", numel)};
    }
  }
}

IndexedParameter parse_parameter(const Json& json, const DeviceMesh& mesh) {
  IndexedParameter parameter;
  parameter.name = text(json, "name");
  std::int64_t numel = 1;
  for (const Json& each : list(json, "shape")) {
    parameter.shape.push_back(count_in(each, "shape", std::numeric_limits<std::int64_t>::max()));
    if (__builtin_mul_overflow(numel, parameter.shape.back(), &numel)) {
      throw Damage{concat("parameter '", parameter.name, "' has too many elements")};
    }
  }
  const std::string dtype = text(json, "dtype");
  if (dtype != to_string(DType::f32) && dtype != to_string(DType::bf16)) {
    throw Damage{concat("'dtype' is '", dtype, "', expected fp32 or bf16")};
  }
  parameter.dtype = dtype == to_string(DType::f32) ? DType::f32 : DType::bf16;
  const Json& trainable = member(json, "trainable");
  if (!trainable.is_boolean()) {
    throw Damage{"'trainable' is neither true nor false"};
  }
  parameter.trainable = trainable.get<bool>();
  parameter.group = text(json, "group");
  for (const Json& each : list(json, "pieces")) {
    parameter.pieces.push_back({.rank = static_cast<int>(count(each, "rank", mesh.shard - 1)),
                                .offset = count(each, "offset", numel),
                                .numel = count(each, "numel", numel)});
  }
  check_pieces(parameter, numel, mesh);
  for (const Json& each : list(json, "states")) {
    if (!each.is_string()) {
      throw Damage{"'states' has what is no text"};
    }
    parameter.states.push_back(each.get<std::string>());
  }
  const Json& counts = member(json, "counts");
  if (!counts.is_object()) {
    throw Damage{"'counts' is no object"};
  }
  for (const auto& [name, value] : counts.items()) {
    parameter.counts[name] = static_cast<std::uint64_t>(
        count_in(value, "counts", std::numeric_limits<std::int64_t>::max()));
  }
  return parameter;
}

CheckpointIndex parse_contents(const Json& json) {
  CheckpointIndex index;
  index.step = static_cast<std::uint64_t>(count(json, "step"));
  index.world_size = static_cast<int>(count(json, "world_size", world_size_max));
  const Json& mesh = member(json, "mesh");
  const auto part = [&](const char* key) {
    const auto value = static_cast<int>(count(mesh, key, world_size_max));
    if (value < 1) {
      throw Damage{concat("'", key, "' is 0")};
    }
    return value;
  };
  index.mesh = {.replicate = part("replicate"), .shard = part("shard"), .ep = part("ep")};
  if (std::int64_t{index.mesh.replicate} * index.mesh.shard != index.world_size ||
      index.mesh.shard % index.mesh.ep != 0) {
    throw Damage{"'mesh' does not divide the world size"};
  }
  const std::string strategy = text(json, "strategy");
  const auto row = std::ranges::find_if(
      strategies, [&](const StrategyRow& each) { return each.name == strategy; });
  if (row == strategies.end()) {
    throw Damage{concat("'strategy' is '", strategy, "', which there is not")};
  }
  index.strategy = row->strategy;
  std::set<std::string> names;
  for (const Json& each : list(json, "parameters")) {
    index.parameters.push_back(parse_parameter(each, index.mesh));
    if (!names.insert(index.parameters.back().name).second) {
      throw Damage{concat("parameter '", index.parameters.back().name, "' is there twice")};
    }
  }
  for (const Json& each : list(json, "files")) {
    index.files.push_back({.bytes = count(each, "bytes"), .hash = hash_in(each)});
  }
  if (static_cast<int>(index.files.size()) != index.world_size) {
    throw Damage{
        concat("'files' has ", index.files.size(), " entries, expected ", index.world_size)};
  }
  return index;
}

}  // namespace

Result<std::string> to_json(const CheckpointIndex& index) {
  Json parameters = Json::array();
  for (const IndexedParameter& parameter : index.parameters) {
    parameters.push_back(to_json(parameter));
  }
  Json files = Json::array();
  for (const IndexedFile& file : index.files) {
    files.push_back({{"bytes", file.bytes}, {"xxh3", hex(file.hash)}});
  }
  Json contents = {
      {"format", format_name},
      {"version", checkpoint_version},
      {"step", index.step},
      {"world_size", index.world_size},
      {"strategy", row_of(index.strategy).name},
      {"mesh",
       {{"replicate", index.mesh.replicate}, {"shard", index.mesh.shard}, {"ep", index.mesh.ep}}},
      {"parameters", std::move(parameters)},
      {"files", std::move(files)}};
  try {
    const std::uint64_t hash = hash_of(contents.dump());
    return Json{{"contents", std::move(contents)}, {"xxh3", hex(hash)}}.dump(1) + "\n";
  } catch (const Json::exception&) {
    return detail::failure(ErrorCode::bad_configuration, "a name is no UTF-8");
  }
}

Result<CheckpointIndex> parse_index(std::string_view text_given) {
  auto parsed = parse_json(text_given);
  if (!parsed) {
    return parsed.failure();
  }
  const Json json = std::move(parsed).value();
  try {
    const Json& contents = member(json, "contents");
    if (text(contents, "format") != format_name) {
      return damaged(concat("it is no ", format_name));
    }
    if (const auto version = count(contents, "version"); version != checkpoint_version) {
      return damaged(
          concat("it is of version ", version, "; this build reads version ", checkpoint_version));
    }
    if (hash_in(json) != hash_of(contents.dump())) {
      return damaged("its checksum is another than its contents have");
    }
    return parse_contents(contents);
  } catch (const Damage& damage) {
    return damaged(damage.text);
  }
}

}  // namespace troupe
