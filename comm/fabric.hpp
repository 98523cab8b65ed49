/// What connects the ranks of a world: makes their communicators and knows the first failure.
/// `LocalWorld` connects threads of one process; simulated and networked worlds are others.
///
/// [Note: epochs] After a failure all communicators are unusable, and the first failure stands:
/// that was epoch 1. The world goes on in epoch 2, with new communicators and no failure, when all
/// ranks agree on it, which they do at the rendezvous: it has nothing to do with communicators, and
/// no failure reaches it. So:
///
///     1. each rank ends what it has under way in the old epoch
///     2. a meeting: all ranks have done so, and say whether they can go on
///     3. `renew(2)`, then `communicator` for each of the new ones
///     4. a meeting: all ranks are ready for the first collective
///
/// A rank that does not come, or cannot go on, ends the world with `end`.
///
/// Thread rules: any thread.
#pragma once

#include "troupe/comm/communicator.hpp"
#include "troupe/comm/rendezvous.hpp"

#include <cstdint>
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

  // [Note: epochs]

  virtual Rendezvous& rendezvous() = 0;
  /// The world is in epoch `epoch`, the next one, from the first such call on; later ones with the
  /// same number change nothing. Communicators of the old one are gone by then.
  virtual void renew(std::uint64_t epoch) = 0;
  /// The world has failed for good: `failure` stands instead of the first one.
  virtual void end(const Failure& failure) = 0;
};

}  // namespace troupe
