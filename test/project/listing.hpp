#pragma once
// Whether every source is built: the check that the lists in the CMake files leave nothing out.

#include "include_rules.hpp"

#include <string>
#include <vector>

namespace troupe::project {

/// Every *.cpp of `sources` that no list names, and every folder with a CMakeLists.txt that no
/// folder above adds; one readable line each. cmake_files  CMakeLists.txt of any folder, and
/// *.cmake; a list may name a file by its path from the
///              list's folder or from ${PROJECT_SOURCE_DIR}
[[nodiscard]] std::vector<std::string> unlisted(const Sources& sources, const Sources& cmake_files);

}  // namespace troupe::project
