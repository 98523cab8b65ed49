#include "explorer.hpp"

#include <algorithm>
#include <utility>

namespace troupe::test {

namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xbf58476d1ce4e5b9ULL;
}

}  // namespace

bool Explorer::next() {
  if (begun_) {
    count_run();
    // The last place where something is left to try.
    while (!way_.empty()) {
      Place& last = way_.back();
      last.asleep.emplace(last.options[last.chosen], last.footprint);
      if (choose_awake(last)) {
        break;
      }
      way_.pop_back();
    }
    if (way_.empty()) {
      return false;
    }
    ++visited_;
  }
  begun_ = true;
  depth_ = 0;
  blocked_ = false;
  return true;
}

/// Goes to the first option that does not sleep and was not tried.
bool Explorer::choose_awake(Place& place) const {
  for (std::size_t index = 0; index < place.options.size(); ++index) {
    if (!place.asleep.contains(place.options[index])) {
      place.chosen = index;
      place.footprint.clear();
      return true;
    }
  }
  return false;
}

bool Explorer::wakes(const Footprint& a, const Footprint& b) const {
  return !reduce_ || std::ranges::any_of(a, [&](const auto& touch) {
    const auto other = b.find(touch.first);
    return other != b.end() && (touch.second || other->second);
  });
}

std::size_t Explorer::choose(std::span<const Option> options) {
  if (blocked_) {
    return 0;  // to the end, somehow
  }
  if (depth_ == way_.size()) {
    Place place;
    for (const Option& option : options) {
      place.options.push_back(option.id);
    }
    if (depth_ > 0) {
      const Place& before = way_.back();
      for (const auto& [id, footprint] : before.asleep) {
        if (!wakes(footprint, before.footprint)) {
          place.asleep.emplace(id, footprint);
        }
      }
    }
    pruned_steps_ += static_cast<std::uint64_t>(std::ranges::count_if(
        place.options, [&](std::uint64_t id) { return place.asleep.contains(id); }));
    if (!choose_awake(place)) {
      blocked_ = true;
      return 0;
    }
    ++visited_;
    way_.push_back(std::move(place));
  } else {
    way_[depth_].footprint.clear();  // observed again
  }
  return way_[depth_++].chosen;
}

void Explorer::touched(std::uint64_t object, bool alone) {
  if (!blocked_ && depth_ > 0) {
    bool& known = way_[depth_ - 1].footprint[object];
    known = known || alone;
  }
}

void Explorer::count_run() {
  if (blocked_) {
    ++pruned_;
    return;
  }
  ++complete_;
  struct History {
    std::uint64_t hash = 0;
    std::uint64_t together = 0;  ///< touches since the last one alone, in whatever order
  };
  std::map<std::uint64_t, History> of_object;
  for (const Place& place : way_) {
    for (const auto& [object, alone] : place.footprint) {
      History& history = of_object[object];
      const std::uint64_t who = mix(1, place.options[place.chosen]);
      if (alone) {
        history.hash = mix(mix(history.hash, std::exchange(history.together, 0)), who);
      } else {
        history.together += who;
      }
    }
  }
  std::uint64_t sum = 0;
  for (const auto& [object, history] : of_object) {
    sum += mix(object, mix(history.hash, history.together));  // in whatever order
  }
  classes_.insert(sum);
}

}  // namespace troupe::test
