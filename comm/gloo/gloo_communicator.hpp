/// One rank's communicator of a group, over connections of Gloo. Made by the transport
/// (gloo_transport.hpp).
///
/// A collective is one operation of its stream, which blocks the stream's worker until the
/// collective is done, interrupted (`WatchedGroup::interrupt`) or past its deadline. Whatever goes
/// wrong is told to the world (`WorldLink::suspect`), whose failure ends the operation. The group's
/// connections are closed before that, so its buffers are not touched afterwards.
///
/// Thread rules: as Communicator says. Collectives under way may outlive the communicator, not the
/// link and the alarm.
#pragma once

#include "troupe/comm/communicator.hpp"
#include "troupe/comm/gloo/interruption.hpp"
#include "troupe/comm/gloo/transfer_plan.hpp"
#include "troupe/comm/process/world_link.hpp"

#include <memory>

namespace gloo {
class Context;
}

namespace troupe {

struct GlooGroupOptions {
  GroupName name{};
  TransferTuning tuning{};
  Duration timeout = std::chrono::minutes{10};
};

/// context  connected to all members; null for a group of one
std::unique_ptr<Communicator> make_gloo_communicator(GlooGroupOptions options,
                                                     std::shared_ptr<gloo::Context> context,
                                                     WorldLink& link,
                                                     Alarm& alarm);

}  // namespace troupe
