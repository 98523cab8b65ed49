/// How long worker streams take for what is issued to them.
#pragma once

#include "samples.hpp"
#include "troupe/comm/host_stream.hpp"

#include <functional>
#include <vector>

namespace troupe::bench {

/// Time from the moment in which all streams may begin until the last has done all that `issue`
/// puts on them. They sleep until then, so that only their own work is measured. Throws the failure
/// of a stream.
Nanoseconds time_on_streams(const std::vector<HostStream*>& streams,
                            const std::function<void()>& issue);

}  // namespace troupe::bench
