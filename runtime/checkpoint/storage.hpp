/// The file system as checkpoints use it: every operation that changes something goes through here,
/// and a hook may look at it first.
///
/// Thread rules: a `Storage` is used by one thread at a time; a file belongs to one thread. Errors:
/// `Failure` (storage) that names the path and the system's reason.
#pragma once

#include "troupe/core/error.hpp"
#include "troupe/runtime/file_hook.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

class Storage {
 public:
  explicit Storage(FileHook before = {}) : before_(std::move(before)) {}

  /// With the folders above it. One that is there is no error.
  Result<void> make_folders(const std::filesystem::path& folder) const;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) const;
  /// What is not there is no error.
  Result<void> remove(const std::filesystem::path& path) const;
  Result<void> sync_folder(const std::filesystem::path& folder) const;
  /// Names in a folder, sorted; none if there is no such folder.
  Result<std::vector<std::string>> list(const std::filesystem::path& folder) const;

 private:
  friend class OutputFile;
  Result<void> ask(FileOperation operation, const std::filesystem::path& path) const;

  FileHook before_;
};

/// A file that is being written, front to back. Not finished: whoever made it removes it.
class OutputFile {
 public:
  /// Errors: also if there is one of that name.
  static Result<OutputFile> create(const Storage& storage, std::filesystem::path path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  Result<void> write(std::span<const std::byte> bytes);
  Result<void> write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  /// All of it is on the medium, and the file closed.
  Result<void> finish();
  /// Written so far.
  std::int64_t bytes() const { return bytes_; }
  /// XXH3 (64 bit) of what was written so far.
  std::uint64_t hash() const;

 private:
  struct Hash;
  OutputFile(const Storage& storage, std::filesystem::path path, int descriptor);

  const Storage* storage_;
  std::filesystem::path path_;
  int descriptor_;
  std::int64_t bytes_ = 0;
  std::unique_ptr<Hash> hash_;
};

/// A file that is read at any place.
class InputFile {
 public:
  static Result<InputFile> open(std::filesystem::path path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  std::int64_t bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }
  /// Errors: also if the file ends before `to` is full.
  Result<void> read(std::int64_t offset, std::span<std::byte> to) const;
  /// XXH3 (64 bit) of all of it, read piece by piece.
  Result<std::uint64_t> hash() const;

 private:
  InputFile(std::filesystem::path path, int descriptor, std::int64_t bytes);

  std::filesystem::path path_;
  int descriptor_;
  std::int64_t bytes_;
};

/// Errors: an empty path; a relative one while the process has no current folder.
Result<std::filesystem::path> absolute_path(const std::filesystem::path& path);

/// All of a file of at most `bytes_max`.
Result<std::string> read_text(const std::filesystem::path& path, std::int64_t bytes_max);

/// What `call` throws, as a value: a hook is anybody's.
template <class Call>
auto without_exceptions(Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& exception) {
    return Failure{.code = ErrorCode::storage, .text = exception.what()};
  } catch (...) {
    return Failure{.code = ErrorCode::storage, .text = "an exception that is not a std::exception"};
  }
}

/// XXH3 (64 bit; Collet, xxHash 0.8).
std::uint64_t hash_of(std::string_view text);

}  // namespace troupe
