/// What connects the ranks of a world: makes their communicators and knows the first failure.
/// `LocalWorld` connects threads of one process; simulated and networked worlds are others.
///
/// Thread rules: any thread.
#pragma once

#include "troupe/comm/communicator.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe {

class Fabric {
 public:
  Fabric() = default;
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  virtual ~Fabric() = default;

  virtual int world_size() const = 0;
  /// `ranks`: world ranks of the group, ascending, including `rank`; its position is the group
  /// rank. Channels of one group are independent of each other. Throws `Error` (bad_configuration)
  /// if `ranks` is not such a list.
  virtual std::unique_ptr<Communicator> communicator(int rank,
                                                     std::vector<int> ranks,
                                                     int channel) = 0;
  /// Makes a failure known; returns the world's first one, which may be another. `abort` is what
  /// ends collectives.
  virtual Failure report(Failure failure) = 0;
  /// Ends everything under way on every rank, and all that follows, with the first failure.
  virtual void abort(const Failure& failure) = 0;
  /// Rank `rank` takes part in nothing any more (its trainer has returned): a collective that waits
  /// for it fails with peer_failed and `text`; those already complete are not affected.
  virtual void leave(int rank, std::string text) = 0;
};

}  // namespace troupe
