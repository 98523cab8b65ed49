#include "tree.hpp"

#include <fstream>
#include <sstream>
#include <string>

namespace troupe::project {
namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void take(Tree& tree, const fs::path& root, const fs::path& path) {
  const auto extension = path.extension();
  const auto name = path.lexically_relative(root).generic_string();
  if (extension == ".hpp" || extension == ".cpp") {
    tree.sources.emplace(name, text_of(path));
  } else if (extension == ".cmake" || path.filename() == "CMakeLists.txt") {
    tree.cmake_files.emplace(name, text_of(path));
  }
}

}  // namespace

Tree read_tree(const fs::path& root) {
  Tree tree;
  take(tree, root, root / "CMakeLists.txt");
  for (const auto* room :
       {"core", "layers", "comm", "actors", "runtime", "examples", "bench", "test", "cmake"}) {
    if (!fs::is_directory(root / room)) {
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      if (entry.is_regular_file()) {
        take(tree, root, entry.path());
      }
    }
  }
  return tree;
}

}  // namespace troupe::project
