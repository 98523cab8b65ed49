/// Where a rank of the link benchmark is: an address, and the network namespace that has it.
#pragma once

#include <functional>
#include <string>

namespace troupe::bench {

struct Host {
  std::string address = "127.0.0.1";
  std::string network_namespace{};  ///< as `ip netns` names it; empty: this process's own

  /// "ADDRESS" or "ADDRESS@NAMESPACE"
  static Host parse(const std::string& text);

  /// Runs `body` on a thread in the namespace; sockets and threads made there stay in it. Throws
  /// what `body` throws, and std::system_error if there is no such namespace or no right to enter.
  void run(const std::function<void()>& body) const;
};

}  // namespace troupe::bench
