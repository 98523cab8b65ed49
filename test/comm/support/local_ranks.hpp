/// Ranks of a `LocalWorld`, each with a device of its own, and per channel a stream and a
/// communicator of the group of all.
#pragma once

#include "draw.hpp"
#include "settle.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"
#include "troupe/comm/local_communicator.hpp"
#include "world_fixture.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::test {

/// For `LocalWorld`: no payload is small, each rank does its part.
inline constexpr std::int64_t each_its_part = -1;

class LocalRanks {
 public:
  LocalRanks(int size,
             StreamWorkers workers,
             Duration timeout = patience,
             const Clock& clock = Clock::steady(),
             int channel_count = 1,
             std::int64_t one_mover_bytes_max = LocalWorld::default_one_mover_bytes_max)
      : world(size, timeout, clock, one_mover_bytes_max),
        channels_(static_cast<std::size_t>(channel_count)) {
    for (int rank = 0; rank < size; ++rank) {
      devices_.push_back(std::make_unique<HostDevice>(workers, clock));
      all_.push_back(rank);
    }
    for (int channel = 0; channel < channel_count; ++channel) {
      for (int rank = 0; rank < size; ++rank) {
        auto& lane = channels_[static_cast<std::size_t>(channel)];
        lane.streams.push_back(
            &device(rank).create_host_stream("channel " + std::to_string(channel)));
        lane.communicators.push_back(world.communicator(rank, all_, channel));
      }
    }
  }

  int size() const { return world.world_size(); }
  const std::vector<int>& all() const { return all_; }
  HostDevice& device(int rank) { return *devices_[static_cast<std::size_t>(rank)]; }
  HostStream& stream(int rank, int channel = 0) {
    return *channels_[static_cast<std::size_t>(channel)].streams[static_cast<std::size_t>(rank)];
  }
  std::span<HostStream* const> streams(int channel = 0) {
    return channels_[static_cast<std::size_t>(channel)].streams;
  }
  Communicator& communicator(int rank, int channel = 0) {
    return *channels_[static_cast<std::size_t>(channel)]
                .communicators[static_cast<std::size_t>(rank)];
  }
  std::vector<std::optional<Failure>> failures(int channel = 0) {
    std::vector<std::optional<Failure>> all;
    for (HostStream* each : streams(channel)) {
      all.push_back(each->failure());
    }
    return all;
  }

  LocalWorld world;

 private:
  struct Channel {
    std::vector<HostStream*> streams;
    std::vector<std::unique_ptr<Communicator>> communicators;
  };

  std::vector<int> all_;
  std::vector<Channel> channels_;
  std::vector<std::unique_ptr<HostDevice>> devices_;
};

/// One channel, for the contract suite: streams with a thread each.
class LocalThreads : public WorldFixture {
 public:
  explicit LocalThreads(int size,
                        std::int64_t one_mover_bytes_max = LocalWorld::default_one_mover_bytes_max)
      : ranks(size, StreamWorkers::threads, patience, Clock::steady(), 1, one_mover_bytes_max) {}

  int size() const override { return ranks.size(); }
  Device& device(int rank) override { return ranks.device(rank); }
  Stream& stream(int rank) override { return ranks.stream(rank); }
  Communicator& communicator(int rank) override { return ranks.communicator(rank); }
  std::vector<std::optional<Failure>> settle() override {
    for (HostStream* each : ranks.streams()) {
      test::settle(*each);
    }
    return ranks.failures();
  }

  LocalRanks ranks;
};

/// The same on one thread: a seed decides which stream makes the next step.
class LocalManual : public WorldFixture {
 public:
  explicit LocalManual(int size,
                       std::uint64_t seed = 1,
                       std::int64_t one_mover_bytes_max = LocalWorld::default_one_mover_bytes_max)
      : ranks(size, StreamWorkers::manual, patience, Clock::steady(), 1, one_mover_bytes_max),
        random_(seed) {}

  int size() const override { return ranks.size(); }
  Device& device(int rank) override { return ranks.device(rank); }
  Stream& stream(int rank) override { return ranks.stream(rank); }
  Communicator& communicator(int rank) override { return ranks.communicator(rank); }
  std::vector<std::optional<Failure>> settle() override {
    for (;;) {
      std::vector<HostStream*> ready;
      for (HostStream* each : ranks.streams()) {
        if (each->ready()) {
          ready.push_back(each);
        }
      }
      if (ready.empty()) {
        break;
      }
      ready[random_.below(ready.size())]->step();
    }
    REQUIRE_MESSAGE(all_idle(ranks.streams()), "a wake-up was lost, or streams wait in a circle");
    return ranks.failures();
  }

  LocalRanks ranks;

 private:
  Random random_;
};

/// Both, with every rank doing its part of the smallest payload too.
struct LocalThreadsEach final : LocalThreads {
  explicit LocalThreadsEach(int size) : LocalThreads(size, each_its_part) {}
};
struct LocalManualEach final : LocalManual {
  explicit LocalManualEach(int size) : LocalManual(size, 1, each_its_part) {}
};

}  // namespace troupe::test
