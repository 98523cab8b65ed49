/// What ranks tell each other about a collective before they use its payload, and the numbers of
/// its messages, which follow from it: Gloo's slots.
///
/// [Note: slots] A message is received only by a receive with the same slot, from the same peer.
/// The slots of a collective begin at a hash of its call and turn, so payload of one call never
/// meets a receive of another: Gloo would end the process if their sizes differ. The two wait until
/// the headers, whose slot is made of the turn alone, have told that the calls differ.
#pragma once

#include "troupe/comm/gloo/transfer_plan.hpp"
#include "troupe/comm/process/launch_log.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace troupe {

/// All that ranks must agree on, in the byte order of the machine. Two calls are the same
/// collective if their headers are equal.
using CallHeader = std::array<std::byte, 48>;

CallHeader header_of(const CollectiveCall& call);
/// The call, without its label.
LoggedCall call_of(const CallHeader& header);

std::uint64_t header_slot(std::uint64_t turn);
/// Of message number 0 from one rank to another on `lane`; number n has the slot n behind it.
std::uint64_t first_slot(const CallHeader& header, std::uint64_t turn, Lane lane);

}  // namespace troupe
