/// The entries of a world's log in the store: all that concerns the world as a whole. Values that
/// are sent; [Note: the history] in process_world.hpp says what becomes of them.
#pragma once

#include "troupe/comm/process/world_link.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe {

/// A process has come.
struct JoinedEvent {
  int rank = 0;
  int world_size = 0;         ///< as it was told
  std::string name;           ///< "pid 41 on host7"
  std::uint64_t process = 0;  ///< random: tells apart those that take themselves for one rank
  bool operator==(const JoinedEvent&) const = default;
};

/// A failure of the world, of which the first of an epoch counts. Epoch 0 is before all have come.
struct FailedEvent {
  std::uint64_t epoch = 0;
  Failure failure;
  bool operator==(const FailedEvent&) const = default;
};

struct SuspectedEvent {
  std::uint64_t epoch = 0;
  Suspicion suspicion;
  bool operator==(const SuspectedEvent&) const = default;
};

/// How much a rank has launched on one communicator.
struct LaunchCount {
  GroupName group;
  std::uint64_t launched = 0;
  bool operator==(const LaunchCount&) const = default;
};

/// A rank launches nothing any more.
struct DepartedEvent {
  int rank = 0;
  std::string text;  ///< why
  std::vector<LaunchCount> launched;
  bool operator==(const DepartedEvent&) const = default;
};

/// The store's own word about a rank that has gone silent (its will).
struct DiedEvent {
  int rank = 0;
  std::string text;
  std::uint64_t process = 0;  ///< that of its `JoinedEvent`
  bool operator==(const DiedEvent&) const = default;
};

/// A rank has come to a meeting; see `Rendezvous`.
struct ArrivedEvent {
  int rank = 0;
  std::uint64_t meeting = 0;
  std::string word;
  bool operator==(const ArrivedEvent&) const = default;
};

/// A rank comes to no meeting any more.
struct AbsentEvent {
  int rank = 0;
  std::string text;
  bool operator==(const AbsentEvent&) const = default;
};

struct ClosedEvent {
  std::uint64_t meeting = 0;
  Failure failure;
  bool operator==(const ClosedEvent&) const = default;
};

/// The world has failed for good.
struct EndedEvent {
  Failure failure;
  bool operator==(const EndedEvent&) const = default;
};

using WorldEvent = std::variant<JoinedEvent,
                                FailedEvent,
                                SuspectedEvent,
                                DepartedEvent,
                                DiedEvent,
                                ArrivedEvent,
                                AbsentEvent,
                                ClosedEvent,
                                EndedEvent>;

std::string encode(WorldEvent event);
/// Nothing if it is damaged, or was written by another version.
std::optional<WorldEvent> decode_event(std::string_view bytes);

}  // namespace troupe
