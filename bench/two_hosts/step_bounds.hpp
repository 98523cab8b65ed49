/// The least time that a step can take on a link, from what computation and communication take
/// alone.
#pragma once

#include "rank_run.hpp"

#include <algorithm>
#include <cstdint>

namespace troupe::bench {

/// Of a full Ethernet frame, 1,514 bytes, so much is payload of TCP: its header, IP's and
/// Ethernet's, and TCP's time stamps take 66 bytes.
inline constexpr double payload_share = 1448.0 / 1514.0;

/// Nanoseconds that so many bytes of payload need on a link of `mbit`.
inline double transfer_ns(double bytes, double mbit) {
  return bytes * 8e3 / (mbit * payload_share);
}

/// max(forward, gathers) + max(backward, gathers + reduces) + last reduce + rest, where the forward
/// gathers every parameter once and the backward what is left, and all units are about alike.
/// alone    of a rank that computes without communication
/// together for the bytes
inline double bound_ns(const RankNumbers& alone,
                       const RankNumbers& together,
                       double link_mbit,
                       std::int64_t units) {
  // A reduce-scatter sends what an all-gather of the same parameters does.
  const double once = transfer_ns(together.reduced_bytes, link_mbit);
  const double again = transfer_ns(together.gathered_bytes, link_mbit) - once;
  const double rest = alone.step_ns - alone.forward_ns - alone.backward_ns;
  return std::max(alone.forward_ns, once) + std::max(alone.backward_ns, again + once) +
         once / static_cast<double>(units) + rest;
}

}  // namespace troupe::bench
