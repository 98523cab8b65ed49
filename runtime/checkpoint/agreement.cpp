#include "troupe/runtime/checkpoint/agreement.hpp"

#include "troupe/core/text.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <string>
#include <utility>

namespace troupe {

std::vector<Json> agree(RuntimeImpl& runtime,
                        const char* label,
                        Json own,
                        const Result<void>& met) {
  Json message = {{"says", std::move(own)}};
  if (!met) {
    message["code"] = static_cast<int>(met.failure().code);
    message["text"] = met.failure().text;
  }
  const auto texts = runtime.exchange(label, message.dump(-1, ' ', false, replace_bad_utf8));
  std::vector<Json> said;
  said.reserve(texts.size());
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    Json each = Json::parse(texts[rank]);
    if (each.contains("text")) {
      throw Error({.code = static_cast<ErrorCode>(each["code"].get<int>()),
                   .text = detail::concat("rank ", rank, ": ", each["text"].get<std::string>()),
                   .rank = static_cast<int>(rank)});
    }
    said.push_back(std::move(each["says"]));
  }
  return said;
}

}  // namespace troupe
