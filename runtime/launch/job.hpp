/// Runs the ranks of a job on this host, from the start of the first to the end of the last.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::launch {

struct JobOptions {
  int ranks = 1;
  std::vector<std::string> command;  ///< the program of each rank, and its arguments
  /// When a rank has failed the others have so long to end by themselves, and to say why.
  std::chrono::milliseconds settle = std::chrono::seconds{3};
  /// Then they are asked to end (SIGTERM), and killed so much later.
  std::chrono::milliseconds grace = std::chrono::seconds{10};
};

/// Returns the exit code of the job: 0 if all ranks have ended with 0, else that of the first one
/// that did not (128 + the signal that ended it); 127 or 126 if the program is not there or cannot
/// be run; 141 if nobody reads what is written.
///
/// Each line that a rank writes goes to the same stream of this process, behind "[rank] ". SIGINT,
/// SIGTERM and SIGHUP are passed on, unless this process was started with them ignored. When it
/// returns, no rank runs any more, nor what ranks have left in their process groups.
///
/// To be called once, by a process of one thread: it changes how the process takes signals. Throws
/// `std::system_error` if the system refuses what it needs.
int run_job(const JobOptions& options);

}  // namespace troupe::launch
