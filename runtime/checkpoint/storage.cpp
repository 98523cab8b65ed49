#include "troupe/runtime/checkpoint/storage.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace troupe {

namespace {

namespace fs = std::filesystem;

Failure failure(const char* what, const fs::path& path, const std::string& reason) {
  return {.code = ErrorCode::storage,
          .text = std::string("cannot ") + what + " " + path.string() + ": " + reason};
}

Failure failure(const char* what, const fs::path& path, int error) {
  return failure(what, path, std::generic_category().message(error));
}

/// Retries what a signal has interrupted.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

Result<void> sync_descriptor(int descriptor, const char* what, const fs::path& path) {
  if (uninterrupted([&] { return ::fsync(descriptor); }) != 0) {
    return failure(what, path, errno);
  }
  return {};
}

}  // namespace

const char* to_string(FileOperation operation) {
  switch (operation) {
    case FileOperation::make_folder:
      return "make_folder";
    case FileOperation::create:
      return "create";
    case FileOperation::write:
      return "write";
    case FileOperation::sync:
      return "sync";
    case FileOperation::sync_folder:
      return "sync_folder";
    case FileOperation::rename:
      return "rename";
    case FileOperation::remove:
      return "remove";
  }
  return "?";
}

Result<void> Storage::ask(FileOperation operation, const fs::path& path) const {
  return before_ ? before_(operation, path) : Result<void>();
}

Result<void> Storage::make_folders(const fs::path& folder) const {
  if (auto asked = ask(FileOperation::make_folder, folder); !asked) {
    return asked;
  }
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? failure("make the folder", folder, error.message()) : Result<void>();
}

Result<void> Storage::rename(const fs::path& from, const fs::path& to) const {
  if (auto asked = ask(FileOperation::rename, to); !asked) {
    return asked;
  }
  std::error_code error;
  fs::rename(from, to, error);
  return error ? failure("rename to", to, error.message()) : Result<void>();
}

Result<void> Storage::remove(const fs::path& path) const {
  if (auto asked = ask(FileOperation::remove, path); !asked) {
    return asked;
  }
  std::error_code error;
  fs::remove_all(path, error);
  return error ? failure("remove", path, error.message()) : Result<void>();
}

Result<void> Storage::sync_folder(const fs::path& folder) const {
  if (auto asked = ask(FileOperation::sync_folder, folder); !asked) {
    return asked;
  }
  const int descriptor =
      uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) {
    return failure("open the folder", folder, errno);
  }
  auto synced = sync_descriptor(descriptor, "sync the folder", folder);
  ::close(descriptor);
  return synced;
}

Result<std::vector<std::string>> Storage::list(const fs::path& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return failure("list the folder", folder, error.message());
  }
  std::ranges::sort(names);
  return names;
}

struct OutputFile::Hash {
  XXH3_state_t state;
};

OutputFile::OutputFile(const Storage& storage, fs::path path, int descriptor)
    : storage_(&storage),
      path_(std::move(path)),
      descriptor_(descriptor),
      hash_(std::make_unique<Hash>()) {
  XXH3_64bits_reset(&hash_->state);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : storage_(other.storage_),
      path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_),
      hash_(std::move(other.hash_)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Result<OutputFile> OutputFile::create(const Storage& storage, fs::path path) {
  if (auto asked = storage.ask(FileOperation::create, path); !asked) {
    return asked.failure();
  }
  constexpr mode_t anybody = 0666;  // less the umask
  const int descriptor = uninterrupted(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, anybody); });
  if (descriptor < 0) {
    return failure("create", path, errno);
  }
  return OutputFile(storage, std::move(path), descriptor);
}

Result<void> OutputFile::write(std::span<const std::byte> bytes) {
  if (auto asked = storage_->ask(FileOperation::write, path_); !asked) {
    return asked;
  }
  XXH3_64bits_update(&hash_->state, bytes.data(), bytes.size());
  bytes_ += static_cast<std::int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t written =
        uninterrupted([&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
    if (written < 0) {
      return failure("write", path_, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> OutputFile::finish() {
  if (auto asked = storage_->ask(FileOperation::sync, path_); !asked) {
    return asked;
  }
  if (auto synced = sync_descriptor(descriptor_, "sync", path_); !synced) {
    return synced;
  }
  // Some file systems tell only here what could not be written.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) {
    return failure("close", path_, errno);
  }
  return {};
}

std::uint64_t OutputFile::hash() const {
  return XXH3_64bits_digest(&hash_->state);
}

InputFile::InputFile(fs::path path, int descriptor, std::int64_t bytes)
    : path_(std::move(path)), descriptor_(descriptor), bytes_(bytes) {}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

InputFile::~InputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Result<InputFile> InputFile::open(fs::path path) {
  const int descriptor =
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (descriptor < 0) {
    return failure("open", path, errno);
  }
  InputFile file(std::move(path), descriptor, 0);
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    return failure("open", file.path_, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return failure("open", file.path_, std::string("it is no file"));
  }
  file.bytes_ = status.st_size;
  return file;
}

Result<void> InputFile::read(std::int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got =
        uninterrupted([&] { return ::pread(descriptor_, to.data(), to.size(), offset); });
    if (got < 0) {
      return failure("read", path_, errno);
    }
    if (got == 0) {
      return failure("read", path_, "it ends at byte " + std::to_string(offset));
    }
    offset += got;
    to = to.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Result<std::uint64_t> InputFile::hash() const {
  constexpr std::size_t piece = 1 << 20;
  std::vector<std::byte> room(std::min(piece, static_cast<std::size_t>(bytes_)));
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (std::int64_t offset = 0; offset < bytes_;) {
    const auto numel = std::min(room.size(), static_cast<std::size_t>(bytes_ - offset));
    const std::span<std::byte> part(room.data(), numel);
    if (auto got = read(offset, part); !got) {
      return got.failure();
    }
    XXH3_64bits_update(&state, part.data(), part.size());
    offset += static_cast<std::int64_t>(numel);
  }
  return XXH3_64bits_digest(&state);
}

Result<fs::path> absolute_path(const fs::path& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error);
  return error ? Result<fs::path>(
                     failure("use the path", path.empty() ? "''" : path, error.message()))
               : Result<fs::path>(std::move(absolute));
}

Result<std::string> read_text(const fs::path& path, std::int64_t bytes_max) {
  auto opened = InputFile::open(path);
  if (!opened) {
    return opened.failure();
  }
  const InputFile file = std::move(opened).value();
  if (file.bytes() > bytes_max) {
    return failure("read", path,
                   "it has " + std::to_string(file.bytes()) + " bytes, expected at most " +
                       std::to_string(bytes_max));
  }
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  if (auto got = file.read(0, std::as_writable_bytes(std::span(text))); !got) {
    return got.failure();
  }
  return text;
}

std::uint64_t hash_of(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace troupe
