#include "troupe/runtime/secret_file.hpp"

#include "troupe/core/error.hpp"
#include "troupe/core/text.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

namespace troupe {

namespace {

constexpr std::size_t secret_bytes_max = 4096;

template <class... Parts>
[[noreturn]] void refuse(const std::filesystem::path& path, const Parts&... parts) {
  throw Error({.code = ErrorCode::bad_configuration,
               .text = detail::concat("the secret's file ", path.string(), parts...)});
}

std::string reason() {
  return std::generic_category().message(errno);
}

class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      // A named pipe would be waited for otherwise.
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

std::string read_secret_file(const std::filesystem::path& path) {
  const OpenFile file(path);
  struct stat status{};
  // Of the open file, not of its name, which may be another file's by now.
  if (file.descriptor() < 0 || ::fstat(file.descriptor(), &status) != 0) {
    refuse(path, " cannot be opened: ", reason());
  }
  if (!S_ISREG(status.st_mode)) {
    refuse(path, " is no regular file");
  }
  if (status.st_uid != ::geteuid()) {
    refuse(path, " belongs to user ", status.st_uid, "; expected ", ::geteuid(), ", who runs this");
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    refuse(path, " is open to others; expected mode 0600 (chmod 600 does it)");
  }
  std::string text;
  std::array<char, secret_bytes_max + 1> part{};
  ssize_t count = 0;
  while (text.size() < part.size() &&
         (count = ::read(file.descriptor(), part.data(), part.size())) != 0) {
    if (count < 0 && errno != EINTR) {
      refuse(path, " cannot be read: ", reason());
    }
    text.append(part.data(), count < 0 ? 0 : static_cast<std::size_t>(count));
  }
  text.resize(std::min(text.size(), text.find('\n')));
  if (text.empty() || text.size() > secret_bytes_max) {
    refuse(path, " has a first line of ", text.size(), text.empty() ? "" : " or more",
           " bytes; expected 1 to ", secret_bytes_max);
  }
  return text;
}

}  // namespace troupe
