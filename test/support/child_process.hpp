/// Programs that a test starts: what they write is kept, and none outlives its object.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace troupe::test {

struct ChildOptions {
  std::vector<std::string> command{};              ///< a path, and arguments
  std::map<std::string, std::string> variables{};  ///< besides those of this process
  std::vector<std::string> without{};              ///< variables that it does not get
  std::vector<int> ignored_signals{};              ///< it begins with them ignored
};

/// A process in a group of its own, whose output and errors are kept in memory: a disk may be busy
/// for seconds, and who writes to it waits.
class ChildProcess {
 public:
  /// Exit code, or minus the signal that ended it.
  using Status = int;

  explicit ChildProcess(const ChildOptions& options) {
    std::vector<std::string> words = options.command;
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    out_ = ::memfd_create("out", MFD_CLOEXEC);
    err_ = ::memfd_create("err", MFD_CLOEXEC);
    id_ = out_ < 0 || err_ < 0 ? -1 : ::fork();
    if (id_ == 0) {
      ::setpgid(0, 0);
      ::dup2(out_, STDOUT_FILENO);
      ::dup2(err_, STDERR_FILENO);
      for (const auto& variable : options.without) {
        ::unsetenv(variable.c_str());
      }
      for (const auto& [variable, value] : options.variables) {
        ::setenv(variable.c_str(), value.c_str(), 1);
      }
      for (const int number : options.ignored_signals) {
        ::signal(number, SIG_IGN);
      }
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    if (id_ < 0) {
      throw std::runtime_error("memfd_create or fork failed");
    }
    ::setpgid(id_, id_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    if (!status_) {
      ::kill(-id_, SIGKILL);
      static_cast<void>(wait(std::chrono::seconds{10}));
    }
    ::close(out_);
    ::close(err_);
  }

  pid_t id() const { return id_; }
  /// To the process alone.
  void signal(int number) const { ::kill(id_, number); }

  /// How it has ended; nothing if it has not within `limit`.
  std::optional<Status> wait(std::chrono::milliseconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!status_) {
      int status = 0;
      const pid_t ended = ::waitpid(id_, &status, WNOHANG);
      if (ended == id_) {
        status_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
      } else if (std::chrono::steady_clock::now() >= end) {
        return std::nullopt;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds{5});
      }
    }
    return status_;
  }

  std::string out() const { return text_of(out_); }
  std::string err() const { return text_of(err_); }

 private:
  /// All that was written so far. The process writes at the descriptor's own place; here it is read
  /// elsewhere.
  static std::string text_of(int file) {
    struct stat state{};
    ::fstat(file, &state);
    std::string text(static_cast<std::size_t>(state.st_size), '\0');
    const ssize_t count = ::pread(file, text.data(), text.size(), 0);
    text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return text;
  }

  int out_ = -1;
  int err_ = -1;
  pid_t id_ = -1;
  std::optional<Status> status_;
};

/// Ends the program as a test that is skipped, for want of `capability`; the place to clean up is
/// before.
[[noreturn]] inline void skip(const std::string& capability) {
  std::cout << "SKIP: " << capability << std::endl;
  std::exit(77);
}

/// Calls `done` until it is true, or `limit` has passed; whether it became true.
template <class Done>
bool becomes_true(Done done, std::chrono::milliseconds limit = std::chrono::seconds{20}) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
  }
  return true;
}

/// Running processes that have `word` among their arguments or, as "NAME=value", their
/// variables.
inline std::vector<pid_t> processes_with(const std::string& word) {
  std::vector<pid_t> found;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::string text(1, '\0');
    for (const char* const file : {"cmdline", "environ"}) {
      std::ifstream stream(entry.path() / file, std::ios::binary);
      text.append(std::istreambuf_iterator<char>(stream), {});
      text += '\0';
    }
    if (text.find('\0' + word + '\0') != std::string::npos) {
      found.push_back(std::stoi(name));
    }
  }
  return found;
}

}  // namespace troupe::test
