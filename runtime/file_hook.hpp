/// What saving does to files, for whoever wants to watch it or to make it fail.
#pragma once

#include "troupe/core/error.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>

namespace troupe {

/// An operation that changes what is stored.
enum class FileOperation : std::uint8_t {
  make_folder,
  create,  ///< a file that was not there
  write,
  sync,         ///< a file's content is on the medium
  sync_folder,  ///< … its name, too
  rename,
  remove,  ///< a folder or a file, with all that is in it
};
const char* to_string(FileOperation operation);

/// Called before each operation; a failure that it returns is that of the operation, which is then
/// not done. For tests, and for whoever wants to watch. May be called from several threads at once.
using FileHook = std::function<Result<void>(FileOperation, const std::filesystem::path&)>;

}  // namespace troupe
