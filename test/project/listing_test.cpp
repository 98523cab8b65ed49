#include "listing.hpp"

#include "tree.hpp"

#include <doctest/doctest.h>

namespace troupe::project {
namespace {

using Lines = std::vector<std::string>;

TEST_CASE("every source of this repository is built by some CMakeLists.txt") {
  const auto tree = read_tree(TROUPE_SOURCE_DIR);
  REQUIRE(tree.cmake_files.contains("CMakeLists.txt"));  // the tree was found
  for (const auto& line : unlisted(tree.sources, tree.cmake_files)) {
    FAIL_CHECK(line);
  }
}

TEST_CASE("a source is listed by its own folder, a folder above or from the root") {
  const Sources sources{
      {"core/a.cpp", ""}, {"core/inner/b.cpp", ""}, {"test/main.cpp", ""}, {"core/a.hpp", ""}};
  const Sources lists{
      {"CMakeLists.txt", "add_subdirectory(core)\n"},
      {"core/CMakeLists.txt", "troupe_library(core SOURCES a.cpp\n  inner/b.cpp)\n"},
      {"cmake/targets.cmake", "add_library(x ${PROJECT_SOURCE_DIR}/test/main.cpp)\n"}};
  CHECK(unlisted(sources, lists).empty());
}

TEST_CASE("a source that stands in no list, or only in a comment, is named") {
  CHECK(unlisted({{"core/a.cpp", ""}}, {{"CMakeLists.txt", "# core/a.cpp\n"}}) ==
        Lines{"core/a.cpp: no CMakeLists.txt names it"});
  CHECK(unlisted({{"core/a.cpp", ""}}, {{"CMakeLists.txt", "x(core/aa.cpp core/a.cpp.in)\n"}}) ==
        Lines{"core/a.cpp: no CMakeLists.txt names it"});
}

TEST_CASE("a folder that nothing adds is named") {
  CHECK(unlisted({}, {{"CMakeLists.txt", "add_subdirectory(core)\n"},
                      {"core/CMakeLists.txt", ""},
                      {"comm/CMakeLists.txt", ""}}) ==
        Lines{"comm/CMakeLists.txt: no add_subdirectory leads to it"});
}

}  // namespace
}  // namespace troupe::project
