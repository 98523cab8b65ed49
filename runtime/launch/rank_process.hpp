/// One rank's process: started in a process group of its own, with pipes for what it writes, and
/// ended with all that it has started in that group.
///
/// Thread rules: the process is killed when the thread that has started it ends.
#pragma once

#include "troupe/runtime/launch/descriptor.hpp"

#include <sys/types.h>

#include <array>
#include <map>
#include <optional>
#include <signal.h>
#include <string>
#include <vector>

namespace troupe::launch {

using Variables = std::map<std::string, std::string>;

/// How a process has ended.
struct ProcessEnd {
  int code = 0;    ///< its exit code, or 128 + the signal
  int signal = 0;  ///< that ended it; 0: none
};

struct ProcessOptions {
  std::vector<std::string> command;  ///< program, looked for in PATH, and arguments
  Variables variables;               ///< all that it sees
  sigset_t signal_mask{};            ///< what it begins with
};

class RankProcess {
 public:
  /// Returns when the program runs. Its input is empty. Throws `std::system_error` with what `exec`
  /// says, or any of the calls before it.
  explicit RankProcess(const ProcessOptions& options);
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  /// Kills what still runs.
  ~RankProcess();

  bool running() const { return id_ > 0; }
  /// To the process and its group, as long as it runs.
  void signal(int number) const;
  /// If it has ended since the last call: how; what it has left running in its group is killed
  /// then.
  std::optional<ProcessEnd> reap();

  /// Where its output and its errors can be read, without blocking. Closed by the reader, at the
  /// end.
  std::array<Descriptor, 2> outputs;

 private:
  pid_t id_ = -1;  // also of its group
};

}  // namespace troupe::launch
