#include "troupe/comm/communicator.hpp"

namespace troupe {

std::string describe(const CollectiveCall& call) {
  std::string text = to_string(call.op);
  if (call.bucket != no_bucket) {
    text += " of bucket " + std::to_string(call.bucket);
  }
  if (call.runtime > 1) {  // most ranks have one
    text += " of runtime " + std::to_string(call.runtime);
  }
  if (*call.label != '\0') {
    text += std::string(" '") + call.label + "'";
  }
  return text + " (ticket " + std::to_string(call.ticket) + ")";
}

}  // namespace troupe
