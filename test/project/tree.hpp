#pragma once
// The repository as it lies on disk, for the tests of habits.

#include "include_rules.hpp"

#include <filesystem>

namespace troupe::project {

/// Sources and CMake files of a tree. What lies elsewhere (build/, docs/) is not looked at.
struct Tree {
  Sources sources;      ///< *.hpp and *.cpp of the rooms
  Sources cmake_files;  ///< CMakeLists.txt of the root and the rooms, cmake/*.cmake
};

/// Reads the repository at `root`; what is not there is left out.
[[nodiscard]] Tree read_tree(const std::filesystem::path& root);

}  // namespace troupe::project
