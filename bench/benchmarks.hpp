/// The measurements; each returns its table. Goals are those of design section 8 as they are stated
/// in docs/performance.md; what misses one is shown, not failed.
#pragma once

#include "table.hpp"

namespace troupe::bench {

struct Effort {
  int repetitions = 5;  ///< of everything; medians and spreads are over these
  /// So short that only the program is tested, not the machine.
  bool quick = false;
};

/// What a layer event costs the trainer's thread: hits, hits that launch a prefetch, misses; on
/// Troupe and on the same state machine under one lock.
Table layer_events(const Effort& effort);

/// How the cost of an event grows with the number of buckets: of the schedule alone, and of the way
/// from the trainer's call through scheduler and bucket actors.
Table event_cost(const Effort& effort);

/// In-process collectives against memcpy by two threads.
Table collectives(const Effort& effort);

/// 1,000 layers of 16 bytes on two ranks without any computation: the host's work per layer.
Table thousand_layers(const Effort& effort);

/// Up to 2,048 clients that join one store on loopback at the same time.
Table store_clients(const Effort& effort);

}  // namespace troupe::bench
