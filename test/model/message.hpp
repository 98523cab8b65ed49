/// A message between actors, and what else happens in a simulation, as values: for invariants, and
/// for the list that a failure prints.
#pragma once

#include "troupe/actors/caf.hpp"

#include <cstdint>
#include <memory>
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
    sum_replicas,
    step_end,
    abandon,
    launch,
    stream_done,
    completed,
    failed,
    peer_failed,
    connect,
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
  BucketId bucket = no_bucket;                 ///< launch: whose; trainer_event `updated`: which
  bool changed = true;                         ///< trainer_event `updated`
  bool reduces = true;                         ///< trainer_event `begin_micro_batch`
  Ticket ticket = 0;                           ///< of what is asked for, launched or over
  SlotId slot = no_slot;                       ///< gather; contribute, reduce: gradient slot
  bool again = false;                          ///< gather: within the smaller group
  Collective op = Collective::barrier;         ///< launch
  bool failed = false;                         ///< stream_done, completed: with a failure
  std::shared_ptr<const AgreedOrder> order{};  ///< trainer_event `adopt_order`
};

Sent decode(const ActorTag& to, const caf::type_erased_tuple& message);

std::string to_string(const ActorTag& tag);
/// "rank 1 bucket 3: gather ticket 17 slot 0"
std::string to_string(const Sent& sent);

}  // namespace troupe::test
