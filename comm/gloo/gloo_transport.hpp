/// Communicators over TCP between processes, on the connections of the Gloo library.
///
/// Gloo gives connections and buffers; the collectives are our own (transfer_plan.hpp). Every
/// message carries the call in its slot number, so that payload moves only into a buffer that waits
/// for the same call (call_header.hpp). Each communicator has connections of its own; one thread
/// serves those of all.
///
/// Gloo neither encrypts nor proves who connects: whoever reaches the ports of a job can disturb it
/// and read its payload. Use a network that is the job's own.
///
/// Limits: ranks have the same byte order. A peer that ends between publishing its address and the
/// handshake is waited for up to 30 s, whatever `timeout` says.
#pragma once

#include "troupe/comm/gloo/transfer_plan.hpp"
#include "troupe/comm/process/world_link.hpp"
#include "troupe/comm/store/store.hpp"

#include <memory>
#include <string>

namespace troupe {

struct GlooOptions {
  /// The address of this host that peers connect to, or empty: then `interface_name` names one.
  std::string address = "127.0.0.1";
  std::string interface_name{};
  // The same on all ranks; TransferTuning says what each is.
  SumOrder sum_order = SumOrder::ranks;
  std::int64_t segment_bytes = TransferTuning{}.segment_bytes;
  std::int64_t staging_bytes = TransferTuning{}.staging_bytes;
  /// Of a collective from its begin, and of connecting.
  Duration timeout = std::chrono::minutes{10};
};

/// `store` outlives it; connections are made through keys that begin with "gloo/". The transport
/// outlives its communicators and their collectives.
/// Errors: throws `Error` (bad_configuration) if the address or interface is none of this host, or
/// the tuning cannot be used. `connect` throws bad_configuration if members' tunings differ.
std::unique_ptr<GroupTransport> make_gloo_transport(GlooOptions options, Store& store);

}  // namespace troupe
