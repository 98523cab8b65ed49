/// JSON from files that anybody may have written. Pure.
#pragma once

#include "troupe/core/error.hpp"

#include <nlohmann/json.hpp>

#include <string_view>

namespace troupe {

using Json = nlohmann::json;
inline constexpr auto replace_bad_utf8 = Json::error_handler_t::replace;

/// Errors: storage, what is wrong and at which byte; also an object that has a key twice.
Result<Json> parse_json(std::string_view text);

}  // namespace troupe
