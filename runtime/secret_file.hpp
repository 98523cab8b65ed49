/// The secret of a job, kept in a file that nobody else can read.
#pragma once

#include <filesystem>
#include <string>

namespace troupe {

/// The first line of the file. Throws `Error` (bad_configuration) unless it is a regular file of
/// this user, closed to all others (mode 0600 or 0400), with a first line of 1 to 4,096 bytes.
std::string read_secret_file(const std::filesystem::path& path);

}  // namespace troupe
