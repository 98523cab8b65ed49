/// Waiting for streams in tests, with a limit that only a fault reaches.
#pragma once

#include "troupe/comm/host_stream.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <span>

namespace troupe::test {

inline constexpr auto patience = std::chrono::seconds(60);

/// Waits until everything issued to a stream with a worker is done or dropped.
inline StreamReport settle(Stream& stream) {
  auto settled = std::make_shared<std::promise<StreamReport>>();
  auto report = settled->get_future();
  stream.notify([settled](const StreamReport& now) { settled->set_value(now); });
  REQUIRE_MESSAGE(report.wait_for(patience) == std::future_status::ready,
                  "stream '" << stream.name() << "' does not settle");
  return report.get();
}

inline bool all_idle(std::span<HostStream* const> streams) {
  return std::all_of(streams.begin(), streams.end(),
                     [](const HostStream* stream) { return stream->idle(); });
}

/// Steps manual streams in turn until none is ready, each at least once (for deadlines). True if
/// all are idle then.
inline bool step_all(std::span<HostStream* const> streams) {
  for (bool stepped = true, first = true; stepped; first = false) {
    stepped = false;
    for (HostStream* stream : streams) {
      if (first || stream->ready()) {
        stream->step();
        stepped = true;
      }
    }
  }
  return all_idle(streams);
}

}  // namespace troupe::test
