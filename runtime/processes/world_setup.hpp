/// What worlds of threads and worlds of processes have in common.
#pragma once

#include "troupe/runtime/rank_context.hpp"
#include "troupe/runtime/world.hpp"

namespace troupe {

/// Throws `Error` (bad_configuration) for options that cannot be used.
void check(const WorldOptions& options);

/// How long threads poll before they sleep, if `ranks` ranks share the cores of this host.
Duration choose_poll(const WorldOptions& options, int ranks);

/// Of one rank on the CPU; without actors and fabric.
RankEnvironment environment_of(int rank, const WorldOptions& options, Duration poll);

}  // namespace troupe
