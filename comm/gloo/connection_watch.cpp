#include "troupe/comm/gloo/connection_watch.hpp"

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstdint>

namespace troupe {

namespace {

/// No message has it: those of collectives are hashes.
constexpr std::uint64_t watch_slot = 0;

}  // namespace

ConnectionWatch::ConnectionWatch(gloo::Context& context) {
  for (int peer = 0; peer < context.size; ++peer) {
    if (peer != context.rank) {
      auto buffer = context.createUnboundBuffer(&unused_, sizeof(unused_));
      buffer->recv(peer, watch_slot);
      connections_.push_back({peer, std::move(buffer)});
    }
  }
}

ConnectionWatch::~ConnectionWatch() = default;

/// A wait that is aborted beforehand throws if there is an error, and else ends at once.
void ConnectionWatch::look(int& peer) const {
  for (const Watched& connection : connections_) {
    const int before = peer;
    peer = connection.peer;
    connection.buffer->abortWaitRecv();
    connection.buffer->waitRecv();
    peer = before;
  }
}

}  // namespace troupe
