/// The first failure of a world; whoever comes first wins.
///
/// Thread rules: any thread. `get` takes no lock as long as nothing has failed.
#pragma once

#include "troupe/core/error.hpp"

#include <atomic>
#include <mutex>
#include <optional>

namespace troupe {

class FirstFailure {
 public:
  /// Reports `failure` and returns the first one reported, which may be another.
  Failure report(Failure failure);
  std::optional<Failure> get() const;
  /// `failure` stands instead of the first one: the world could not go on after that.
  void supersede(Failure failure);

 private:
  std::atomic<bool> failed_{false};  // changed under mutex_
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;  // guarded by mutex_
};

}  // namespace troupe
