/// What the ranks of a world of processes write and say about its failure: each rank's launches as
/// JSON, and what follows from those of all together.
///
///     {"rank": 1,
///      "failure": {"code": "mismatch", "text": "…", "rank": 2, "ticket": 6, "bucket": 3},
///      "launches": [{"ticket": 1, "op": "all_gather", "runtime": 1, "bucket": 0, "label": "embed",
///                    "dtype": "fp32", "numel": 336, "root": 0, "channel": "gather",
///                    "axis": "world", "state": "done"}, …]}
///
/// What cannot be named is null: a rank, the bucket of a collective of no bucket.
#pragma once

#include "troupe/actors/rank_state.hpp"
#include "troupe/core/error.hpp"

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace troupe {

std::string to_json(const LaunchDump& dump);
/// With texts cut, so that its JSON is a value that the store takes (1 MiB).
LaunchDump shortened(LaunchDump dump);
/// Nothing if it is none.
std::optional<LaunchDump> launch_dump(const std::string& json);

/// Writes "failure-<rank>.json" in a folder, which is made if it is not there. Errors: storage,
/// naming the path.
Result<void> write_failure(const std::filesystem::path& folder, const LaunchDump& dump);

/// Where the ranks parted: the first ticket at which they launched different collectives, or that
/// some of them never launched; else the first that has not ended. Tickets are looked at from the
/// first that all that have answered still tell of. Pure.
/// dumps  by rank, of those that have answered
std::string summarize(const std::map<int, LaunchDump>& dumps, int world_size);

}  // namespace troupe
