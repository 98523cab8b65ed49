/// What the link benchmark times: collectives of ranks on hosts, ours and Gloo's own, and plain
/// TCP.
#pragma once

#include "host.hpp"
#include "troupe/bench/samples.hpp"
#include "troupe/comm/communicator.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace troupe::bench {

/// Repeats something `count` times on all ranks and returns how long that took.
using Timed = std::function<Nanoseconds(int count)>;

/// One rank a host; all have buffers of `full_bytes`, of which each rank's part is 1 / ranks.
class LinkRanks {
 public:
  LinkRanks(const std::vector<Host>& hosts, std::int64_t full_bytes);
  LinkRanks(const LinkRanks&) = delete;
  LinkRanks& operator=(const LinkRanks&) = delete;
  ~LinkRanks();

  /// Our communicator: `count` collectives queued on every rank's stream.
  Nanoseconds ours(Collective op, DType dtype, int count);
  /// Gloo's all-gather, `count` times on a thread of each rank.
  Nanoseconds stock_all_gather(int count);

 private:
  class Rank;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Ticket ticket_ = 0;
};

/// A connection between the first two hosts, `bytes` both ways at once, `count` times without a
/// pause.
Nanoseconds plain_tcp(const std::vector<Host>& hosts, std::int64_t bytes, int count);

}  // namespace troupe::bench
