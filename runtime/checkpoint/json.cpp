#include "troupe/runtime/checkpoint/json.hpp"

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe {

namespace {

/// A member of it nested deeper than what is written here is no file of ours.
constexpr int depth_max = 16;

}  // namespace

Result<Json> parse_json(std::string_view text) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::optional<std::string> wrong;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (wrong) {
      return false;
    }
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key &&
               !keys.back().insert(value.get<std::string>()).second) {
      wrong = "the key '" + value.get<std::string>() + "' is there twice";
    }
    if (depth > depth_max) {
      wrong = "it is nested more than " + std::to_string(depth_max) + " deep";
    }
    return true;
  };
  try {
    Json json = Json::parse(text, watch);
    if (!wrong) {
      return json;
    }
  } catch (const Json::parse_error& error) {
    wrong = "no JSON at byte " + std::to_string(error.byte);
  } catch (const Json::exception&) {
    wrong = wrong.value_or("no JSON");
  }
  return Failure{.code = ErrorCode::storage, .text = *wrong};
}

}  // namespace troupe
