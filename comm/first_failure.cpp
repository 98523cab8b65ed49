#include "troupe/comm/first_failure.hpp"

#include <utility>

namespace troupe {

Failure FirstFailure::report(Failure failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
  }
  return *failure_;
}

void FirstFailure::supersede(Failure failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
}

std::optional<Failure> FirstFailure::get() const {
  if (!failed_.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace troupe
