/// A message between actors, and what else happens in a simulation, as values: for invariants, and
/// for the list that a failure prints.
#pragma once

#include "troupe/actors/caf.hpp"

#include <cstdint>
#include <string>

namespace troupe::test {

struct Sent {
  enum class Kind : std::uint8_t {
    trainer_event,
    gather,
    begin_use,
    end_use,
    evict,
    contribute,
    reduce,
    step_end,
    abandon,
    launch,
    stream_done,
    completed,
    failed,
    peer_failed,
    register_runtime,
    unregister_runtime,
    tick,
    stop,
    other,  ///< CAF's own: the end of an actor
  };

  Kind kind = Kind::other;
  ActorTag to;
  TrainerEventKind event = TrainerEventKind::begin_use;  ///< trainer_event
  UnitId unit = 0;                                       ///< trainer_event, of a use
  bool backward = false;                                 ///< trainer_event, of a use
  BucketId bucket = no_bucket;          ///< launch: whose; trainer_event `updated`: which
  Ticket ticket = 0;                    ///< gather, reduce, launch, stream_done, completed
  SlotId slot = no_slot;                ///< gather; contribute, reduce: gradient slot
  Collective op = Collective::barrier;  ///< launch
  bool failed = false;                  ///< stream_done, completed: with a failure
};

Sent decode(const ActorTag& to, const caf::type_erased_tuple& message);

std::string to_string(const ActorTag& tag);
/// "rank 1 bucket 3: gather ticket 17 slot 0"
std::string to_string(const Sent& sent);

}  // namespace troupe::test
