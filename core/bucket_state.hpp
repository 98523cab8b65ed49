/// The life of a bucket on one rank, as one table. The bucket actor, the tests and
/// docs/bucket-life.md all read these rows.
///
///     state       memory held                leaves on → to
///     sharded     own shard                  gather → gathering
///     gathering   shard + full buffer        use → in_use; evict, step_end → sharded
///     in_use      shard + full buffer        use, release → in_use; release_last → ready
///     ready       shard + full buffer        use → in_use; evict, step_end → sharded
///     failed      shard                      nothing
///
/// gathering: the gather is requested or in flight, nobody has used it yet; in_use: n ≥ 1 uses.
/// Where full buffers stay (`FullBuffer::stays`), there is one in every state, but what is in it is
/// current only from gathering to ready.
///
/// A state advances in program order, by the scheduler's messages, never by a completion: a use of
/// a `gathering` bucket waits for the gather's event, and the next writer of an evicted slot does
/// too. Any state goes to `failed` on `fail`, and an open use that is abandoned fails its bucket;
/// what arrives at a failed bucket changes nothing. A pair without a row is a fault of Troupe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace troupe {

enum class BucketState : std::uint8_t { sharded, gathering, in_use, ready, failed };
inline constexpr std::size_t bucket_state_count = 5;

enum class BucketEvent : std::uint8_t {
  gather,
  use,
  release,
  release_last,
  evict,
  step_end,
  abandon,
  fail
};
inline constexpr std::size_t bucket_event_count = 8;

constexpr const char* to_string(BucketState state) {
  constexpr std::array<const char*, bucket_state_count> names{"sharded", "gathering", "in_use",
                                                              "ready", "failed"};
  return names[static_cast<std::size_t>(state)];
}

constexpr const char* to_string(BucketEvent event) {
  constexpr std::array<const char*, bucket_event_count> names{
      "gather", "use", "release", "release_last", "evict", "step_end", "abandon", "fail"};
  return names[static_cast<std::size_t>(event)];
}

struct BucketTransition {
  BucketState from;
  BucketEvent on;
  BucketState to;
};

// clang-format off
inline constexpr std::array bucket_transitions{
    BucketTransition{BucketState::sharded,   BucketEvent::gather,       BucketState::gathering},
    BucketTransition{BucketState::gathering, BucketEvent::use,          BucketState::in_use},
    BucketTransition{BucketState::gathering, BucketEvent::evict,        BucketState::sharded},
    BucketTransition{BucketState::gathering, BucketEvent::step_end,     BucketState::sharded},
    BucketTransition{BucketState::in_use,    BucketEvent::use,          BucketState::in_use},
    BucketTransition{BucketState::in_use,    BucketEvent::release,      BucketState::in_use},
    BucketTransition{BucketState::in_use,    BucketEvent::release_last, BucketState::ready},
    BucketTransition{BucketState::ready,     BucketEvent::use,          BucketState::in_use},
    BucketTransition{BucketState::ready,     BucketEvent::evict,        BucketState::sharded},
    BucketTransition{BucketState::ready,     BucketEvent::step_end,     BucketState::sharded},
    BucketTransition{BucketState::in_use,    BucketEvent::abandon,      BucketState::failed},
    BucketTransition{BucketState::sharded,   BucketEvent::fail,         BucketState::failed},
    BucketTransition{BucketState::gathering, BucketEvent::fail,         BucketState::failed},
    BucketTransition{BucketState::in_use,    BucketEvent::fail,         BucketState::failed},
    BucketTransition{BucketState::ready,     BucketEvent::fail,         BucketState::failed},
    BucketTransition{BucketState::failed,    BucketEvent::gather,       BucketState::failed},
    BucketTransition{BucketState::failed,    BucketEvent::use,          BucketState::failed},
    BucketTransition{BucketState::failed,    BucketEvent::release,      BucketState::failed},
    BucketTransition{BucketState::failed,    BucketEvent::release_last, BucketState::failed},
    BucketTransition{BucketState::failed,    BucketEvent::evict,        BucketState::failed},
    BucketTransition{BucketState::failed,    BucketEvent::step_end,     BucketState::failed},
    BucketTransition{BucketState::failed,    BucketEvent::abandon,      BucketState::failed},
    BucketTransition{BucketState::failed,    BucketEvent::fail,         BucketState::failed},
};
// clang-format on

/// Where `on` leads from `from`; nothing if the table has no such row.
constexpr std::optional<BucketState> next_state(BucketState from, BucketEvent on) {
  for (const auto& row : bucket_transitions) {
    if (row.from == from && row.on == on) {
      return row.to;
    }
  }
  return std::nullopt;
}

/// Whether a full buffer is held in this state.
constexpr bool holds_full_buffer(BucketState state) {
  return state == BucketState::gathering || state == BucketState::in_use ||
         state == BucketState::ready;
}

/// The gradient of a bucket: `empty` → (first backward of it begins) `filling` → (reduce) `empty`.
/// The reduce is a ticket; its completion retires the ticket and frees the slot by its event.
enum class GradientState : std::uint8_t { empty, filling };

namespace detail {

consteval bool one_row_per_pair() {
  for (std::size_t i = 0; i < bucket_transitions.size(); ++i) {
    for (std::size_t j = i + 1; j < bucket_transitions.size(); ++j) {
      if (bucket_transitions[i].from == bucket_transitions[j].from &&
          bucket_transitions[i].on == bucket_transitions[j].on) {
        return false;
      }
    }
  }
  return true;
}

consteval bool every_state_reachable() {
  std::array<bool, bucket_state_count> seen{};
  seen[static_cast<std::size_t>(BucketState::sharded)] = true;
  for (std::size_t round = 0; round < bucket_state_count; ++round) {
    for (const auto& row : bucket_transitions) {
      if (seen[static_cast<std::size_t>(row.from)]) {
        seen[static_cast<std::size_t>(row.to)] = true;
      }
    }
  }
  for (const bool reached : seen) {
    if (!reached) {
      return false;
    }
  }
  return true;
}

consteval bool failed_is_final() {
  for (const auto& row : bucket_transitions) {
    if (row.from == BucketState::failed && row.to != BucketState::failed) {
      return false;
    }
  }
  for (std::size_t event = 0; event < bucket_event_count; ++event) {
    if (!next_state(BucketState::failed, static_cast<BucketEvent>(event))) {
      return false;
    }
  }
  return true;
}

static_assert(one_row_per_pair());
static_assert(every_state_reachable());
static_assert(failed_is_final());
static_assert(!next_state(BucketState::in_use, BucketEvent::evict));
static_assert(!next_state(BucketState::sharded, BucketEvent::use));

}  // namespace detail

}  // namespace troupe
