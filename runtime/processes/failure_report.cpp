#include "troupe/runtime/processes/failure_report.hpp"

#include "troupe/comm/call_check.hpp"
#include "troupe/runtime/checkpoint/json.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

namespace troupe {

namespace {

constexpr std::array<const char*, channel_count> channel_names{"gather", "reduce"};

/// The enumerator of that name: `name_of` gives the name of each, up to `last`. Throws if there is
/// none.
template <class Enum, class NameOf>
Enum named(const Json& name, Enum last, NameOf name_of) {
  for (int index = 0; index <= static_cast<int>(last); ++index) {
    if (name == name_of(static_cast<Enum>(index))) {
      return static_cast<Enum>(index);
    }
  }
  throw std::invalid_argument(name.dump());
}

const char* name_of_channel(Channel channel) {
  return channel_names[static_cast<std::size_t>(channel)];
}

template <class T, class None>
Json or_null(T value, None none) {
  return value == static_cast<T>(none) ? Json(nullptr) : Json(value);
}

template <class T>
T or_none(const Json& value, T none) {
  return value.is_null() ? none : value.get<T>();
}

Json json_of(const LaunchDump::Launch& launch) {
  const LaunchRecord& record = launch.record;
  return {{"ticket", record.ticket},
          {"op", to_string(record.op)},
          {"runtime", record.runtime},
          {"bucket", or_null(record.bucket, no_bucket)},
          {"label", record.label},
          {"dtype", to_string(record.dtype)},
          {"numel", record.numel},
          {"root", record.root},
          {"channel", name_of_channel(record.channel)},
          {"axis", to_string(record.axis)},
          {"state", launch.state}};
}

/// Throws nlohmann's exceptions, and `invalid_argument` for an unknown name.
LaunchDump::Launch launch_of(const Json& json) {
  const auto op_name = [](Collective op) { return to_string(op); };
  const auto dtype_name = [](DType dtype) { return to_string(dtype); };
  const auto axis_name = [](GroupAxis axis) { return to_string(axis); };
  LaunchDump::Launch launch;
  launch.state = json.at("state");
  launch.record.ticket = json.at("ticket");
  launch.record.op = named(json.at("op"), Collective::barrier, op_name);
  launch.record.runtime = json.at("runtime");
  launch.record.bucket = or_none(json.at("bucket"), no_bucket);
  launch.record.label = json.at("label");
  launch.record.dtype = named(json.at("dtype"), DType::bf16, dtype_name);
  launch.record.numel = json.at("numel");
  launch.record.root = json.at("root");
  launch.record.channel = named(json.at("channel"), Channel::reduce, name_of_channel);
  launch.record.axis = named(json.at("axis"), GroupAxis::regather, axis_name);
  return launch;
}

}  // namespace

std::string to_json(const LaunchDump& dump) {
  const Failure& failure = dump.failure;
  Json launches = Json::array();
  for (const LaunchDump::Launch& launch : dump.launches) {
    launches.push_back(json_of(launch));
  }
  const Json json{{"rank", dump.rank},
                  {"failure",
                   {{"code", to_string(failure.code)},
                    {"text", failure.text},
                    {"rank", or_null(failure.rank, -1)},
                    {"ticket", or_null(failure.ticket, 0)},
                    {"bucket", or_null(failure.bucket, no_bucket)}}},
                  {"launches", std::move(launches)}};
  return json.dump(2, ' ', false, replace_bad_utf8);
}

LaunchDump shortened(LaunchDump dump) {
  constexpr std::size_t text_bytes_max = std::size_t{64} << 10;
  constexpr std::size_t label_bytes_max = 512;
  dump.failure.text.resize(std::min(dump.failure.text.size(), text_bytes_max));
  for (LaunchDump::Launch& launch : dump.launches) {
    std::string& label = launch.record.label;
    label.resize(std::min(label.size(), label_bytes_max));
  }
  return dump;
}

std::optional<LaunchDump> launch_dump(const std::string& text) {
  const Result<Json> parsed = parse_json(text);
  if (!parsed) {
    return std::nullopt;
  }
  try {
    const Json& json = parsed.value();
    LaunchDump dump;
    dump.rank = json.at("rank");
    const Json& failure = json.at("failure");
    const auto code_name = [](ErrorCode code) { return to_string(code); };
    dump.failure.code = named(failure.at("code"), ErrorCode::internal, code_name);
    dump.failure.text = failure.at("text");
    dump.failure.rank = or_none(failure.at("rank"), -1);
    dump.failure.ticket = or_none(failure.at("ticket"), Ticket{0});
    dump.failure.bucket = or_none(failure.at("bucket"), no_bucket);
    for (const Json& launch : json.at("launches")) {
      dump.launches.push_back(launch_of(launch));
    }
    return dump;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

Result<void> write_failure(const std::filesystem::path& folder, const LaunchDump& dump) {
  const std::filesystem::path path = folder / ("failure-" + std::to_string(dump.rank) + ".json");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << to_json(dump) << '\n';
  file.close();
  if (!file) {
    return Failure{
        .code = ErrorCode::storage,
        .text = "cannot write " + path.string() + ": " + std::generic_category().message(errno),
        .rank = dump.rank};
  }
  return {};
}

}  // namespace troupe
