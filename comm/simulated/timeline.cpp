#include "troupe/comm/simulated/timeline.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

Timeline::Id Timeline::at(TimePoint due, const void* owner, std::function<void()> action) {
  due = std::max(due, now_);
  const auto place = std::ranges::upper_bound(planned_, due, {}, &Planned::due);
  planned_.insert(place, {due, ++last_, owner, std::move(action)});
  return last_;
}

void Timeline::cancel(Id id) {
  const auto found = std::ranges::find(planned_, id, &Planned::id);
  if (found != planned_.end()) {
    planned_.erase(found);
  }
}

std::size_t Timeline::next_count() const {
  if (planned_.empty()) {
    return 0;
  }
  const auto end =
      std::ranges::upper_bound(planned_, std::max(planned_.front().due, now_), {}, &Planned::due);
  return static_cast<std::size_t>(end - planned_.begin());
}

void Timeline::run(std::size_t index) {
  const auto chosen = planned_.begin() + static_cast<std::ptrdiff_t>(index);
  now_ = std::max(now_, chosen->due);
  const auto action = std::move(chosen->action);
  planned_.erase(chosen);
  action();
}

}  // namespace troupe
