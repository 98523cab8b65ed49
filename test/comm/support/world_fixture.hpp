/// What the contract suite needs of a communicator under test: ranks, each with a device, a stream
/// and a communicator of the group of all, driven from one test thread.
#pragma once

#include "troupe/comm/communicator.hpp"
#include "troupe/comm/device.hpp"

#include <optional>
#include <vector>

namespace troupe::test {

class WorldFixture {
 public:
  WorldFixture() = default;
  WorldFixture(const WorldFixture&) = delete;
  WorldFixture& operator=(const WorldFixture&) = delete;
  virtual ~WorldFixture() = default;

  virtual int size() const = 0;
  virtual Device& device(int rank) = 0;
  virtual Stream& stream(int rank) = 0;
  virtual Communicator& communicator(int rank) = 0;
  /// Runs until everything issued on every rank's stream is done or dropped. Failures by rank.
  virtual std::vector<std::optional<Failure>> settle() = 0;
};

}  // namespace troupe::test
