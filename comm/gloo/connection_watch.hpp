/// Tells whether connections of a context are lost.
///
/// [Note: lost in the middle] When a connection is lost Gloo tells the buffers whose messages have
/// not begun; one whose message is half read or half written never hears of it, and a wait for it
/// would last until its deadline. So there is a receive from each peer that is never met: its
/// buffer always hears. Who waits looks there from time to time.
///
/// Thread rules: one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace gloo {
class Context;
namespace transport {
class UnboundBuffer;
}
}  // namespace gloo

namespace troupe {

class ConnectionWatch {
 public:
  /// `context` is connected, and outlives this. Throws what Gloo throws.
  explicit ConnectionWatch(gloo::Context& context);
  ConnectionWatch(const ConnectionWatch&) = delete;
  ConnectionWatch& operator=(const ConnectionWatch&) = delete;
  ~ConnectionWatch();

  /// Throws what Gloo throws for the first lost connection, after it has set `peer` to whose it is.
  void look(int& peer) const;

 private:
  struct Watched {
    int peer;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  };

  std::byte unused_{};  ///< where nothing is received
  std::vector<Watched> connections_;
};

}  // namespace troupe
