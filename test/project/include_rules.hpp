#pragma once
// Which room may include what, and the check of it. Pure: it sees only the texts it is given.

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::project {

/// Texts of files by their path from the root of the repository, for instance "core/dtype.hpp".
using Sources = std::map<std::string, std::string>;

/// One `#include` line.
struct Include {
  std::string target;  ///< what stands between the brackets or quotes
  bool quoted = false;
  int line = 0;  ///< from 1
};

/// The include lines of a C++ text, in their order.
[[nodiscard]] std::vector<Include> includes_of(std::string_view text);

/// Every breach of the rules in the table of include_rules.cpp, one readable line each, in the
/// order of the paths; empty for a clean tree.
///  - A room includes its own headers, those of the rooms below it and the libraries granted to it.
///  - Our headers are included as troupe/room/file.hpp and exist. Examples and tests may include
///    their neighbours in the same folder by name.
///  - No public header of runtime/ or layers/ reaches a header of CAF, CUDA, NCCL, Gloo or Boost,
///  not
///    even through another header of ours: an embedding trainer does not compile them.
[[nodiscard]] std::vector<std::string> breaches_of_include_rules(const Sources& sources);

}  // namespace troupe::project
