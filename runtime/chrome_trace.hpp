/// Writes a trace as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open. How to
/// read it: docs/trace.md.
#pragma once

#include "troupe/core/trace.hpp"

#include <ostream>

namespace troupe {

/// A process per rank (pid = rank + 1, since viewers take 0 for the idle process), a thread per row
/// that has spans, the counters beside them. Times in µs to the nanosecond, from the first record
/// on. What was dropped is said in the name of the rank and under "otherData". Names that are not
/// UTF-8 are written with U+FFFD for what is wrong. Errors: those of the stream. Not to be called
/// while the world runs.
void write_chrome_trace(std::ostream& out, const Trace& trace);

}  // namespace troupe
