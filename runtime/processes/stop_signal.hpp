/// SIGTERM, taken as a wish to stop while one of these lives: the handler before it is back when
/// the last one ends.
///
/// Thread rules: any thread. A handler that another part of the program sets meanwhile is lost at
/// the end.
#pragma once

namespace troupe {

class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Whether the signal has come since the first of those that live was made.
  static bool came();
};

}  // namespace troupe
