/// How ranks come to one verdict about files: each says what it met, all hear all.
#pragma once

#include "troupe/core/error.hpp"
#include "troupe/runtime/checkpoint/json.hpp"

#include <vector>

namespace troupe {

class RuntimeImpl;

/// What each rank has to say, by rank. If one of them had a failure, every rank throws it: that of
/// the lowest rank, with the rank named. Collective.
/// label  for messages; a literal
std::vector<Json> agree(RuntimeImpl& runtime,
                        const char* label,
                        Json own,
                        const Result<void>& met = {});

}  // namespace troupe
