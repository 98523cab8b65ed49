#include "listing.hpp"

#include <cctype>
#include <set>
#include <string_view>

namespace troupe::project {
namespace {

// Words of a CMake text without its comments, freed of the name of the root folder.
std::vector<std::string> words_of(std::string_view text) {
  constexpr std::string_view from_root = "${PROJECT_SOURCE_DIR}/";
  std::vector<std::string> words(1);
  bool comment = false;
  for (const char character : text) {
    comment = character == '#' || (comment && character != '\n');
    const bool separates = comment || character == '(' || character == ')' || character == '"' ||
                           std::isspace(static_cast<unsigned char>(character)) != 0;
    if (!separates) {
      words.back() += character;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  for (auto& word : words) {
    if (word.starts_with(from_root)) {
      word = "/" + word.substr(from_root.size());
    }
  }
  return words;
}

}  // namespace

std::vector<std::string> unlisted(const Sources& sources, const Sources& cmake_files) {
  std::set<std::string>
      listed;  // paths from the root; a folder's name too, which add_subdirectory gives
  for (const auto& [path, text] : cmake_files) {
    const auto folder = path.substr(0, path.rfind('/') + 1);
    for (const auto& word : words_of(text)) {
      listed.insert(word.starts_with('/') ? word.substr(1) : folder + word);
    }
  }
  std::vector<std::string> missing;
  for (const auto& [path, text] : sources) {
    if (path.ends_with(".cpp") && !listed.contains(path)) {
      missing.push_back(path + ": no CMakeLists.txt names it");
    }
  }
  for (const auto& [path, text] : cmake_files) {
    constexpr std::string_view file = "/CMakeLists.txt";
    if (path.ends_with(file) && !listed.contains(path.substr(0, path.size() - file.size()))) {
      missing.push_back(path + ": no add_subdirectory leads to it");
    }
  }
  return missing;
}

}  // namespace troupe::project
