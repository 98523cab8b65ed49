/// Communicators over TCP between processes, on the connections of the Gloo library.
///
/// Gloo gives connections and buffers; the collectives are our own (transfer_plan.hpp). Every
/// message carries the call in its slot number, so that payload moves only into a buffer that waits
/// for the same call: Gloo would end the process otherwise (a size that differs cannot be caught).
#pragma once

#include "troupe/comm/process/world_link.hpp"
#include "troupe/comm/store/store.hpp"

#include <memory>
#include <string>

namespace troupe {

/// In which order contributions are added.
enum class SumOrder : std::uint8_t {
  ranks,  ///< ((r0 + r1) + r2) + …, like in one process: bit for bit the same
  ring,   ///< each block begins at another rank; one pass around, less memory to hold parts in
};

struct GlooOptions {
  /// The address of this host that peers connect to, or empty: then `interface` names one.
  std::string address = "127.0.0.1";
  std::string interface_name{};
  SumOrder sum_order = SumOrder::ranks;
  std::int64_t segment_bytes = std::int64_t{512} << 10;
  /// Of a collective, and of connecting.
  Duration timeout = std::chrono::minutes{10};
};

/// `store` outlives it; connections are made through keys that begin with "gloo/".
/// Errors: throws `Error` (bad_configuration) if the address or interface is none of this host.
std::unique_ptr<GroupTransport> make_gloo_transport(GlooOptions options, Store& store);

}  // namespace troupe
