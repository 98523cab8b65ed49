// The demo: trains sharded, with one strategy or with each in turn, then unsharded, and reports.
// Called by main and by tests.
#pragma once

#include "options.hpp"

#include <ostream>

namespace gpt {

/// Returns the exit code: 0 all is equal (or nothing was to be compared), 1 a difference, or
/// training failed or diverged, or the trace cannot be written, 2 a file cannot be opened, 143 it
/// was stopped by SIGTERM. Fails also by troupe::Error. Of the ranks of a launcher the first
/// compares; each writes a trace of its own, "trace.rank2.json". out       progress and report err
/// what went wrong, and warnings of the library terminal  out is one: progress overwrites its line
int run_demo(const Options& options, std::ostream& out, std::ostream& err, bool terminal);

}  // namespace gpt
