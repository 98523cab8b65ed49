/// The small integers that everything is named by. Index, count and size are different words:
/// an id is an index, counts end in `_count`, sizes say `numel` (elements) or `bytes`.
#pragma once

#include <cstdint>

namespace troupe {

/// Index of a unit, in registration order.
using UnitId = std::uint32_t;
/// Index of a parameter, in registration order over all units; a tied parameter has one id.
using ParameterId = std::uint32_t;
/// Index of a bucket, in plan order.
using BucketId = std::uint32_t;
/// Index of a slot of unsharded parameters, or of a gradient slot, over all classes.
using SlotId = std::uint32_t;
/// Sequence number of a collective on one device. The first is 1; 0 stands for "none".
using Ticket = std::uint64_t;

inline constexpr BucketId no_bucket = ~BucketId{0};
inline constexpr SlotId no_slot = ~SlotId{0};
inline constexpr UnitId no_unit = ~UnitId{0};

/// The way in which a unit is used. A `recompute` is a forward begun after the first backward of
/// its micro-batch; the schedule tells it from a forward by itself.
enum class Pass : std::uint8_t { forward, backward, recompute };

constexpr const char* to_string(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return "forward";
    case Pass::backward:
      return "backward";
    case Pass::recompute:
      return "recompute";
  }
  return "?";
}

}  // namespace troupe
