/// A few events to wait for, by value.
#pragma once

#include "troupe/comm/stream.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace troupe {

/// At most one event per stream: a later point of a stream stands for the earlier ones. Events of
/// `Stream::caller()` are always done and not kept. The runtime admits no more than `capacity`
/// streams, so that messages have one size and nothing is allocated.
class EventSet {
 public:
  static constexpr std::size_t capacity = 4;

  void add(Event event) {
    if (event.stream == nullptr) {
      return;
    }
    for (std::size_t i = 0; i < count_; ++i) {
      if (events_[i].stream == event.stream) {
        events_[i].point = std::max(events_[i].point, event.point);
        return;
      }
    }
    if (count_ < capacity) {
      events_[count_++] = event;
    } else {
      overflown_ = true;
    }
  }
  void add(const EventSet& other) {
    for (const Event& event : other) {
      add(event);
    }
    overflown_ = overflown_ || other.overflown_;
  }
  void clear() { *this = {}; }

  const Event* begin() const { return events_.data(); }
  const Event* end() const { return events_.data() + count_; }
  bool empty() const { return count_ == 0; }
  bool overflown() const { return overflown_; }

 private:
  std::array<Event, capacity> events_{};
  std::uint8_t count_ = 0;
  bool overflown_ = false;
};

}  // namespace troupe
