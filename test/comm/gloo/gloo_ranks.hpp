/// Ranks of a world over Gloo: each a thread of this process with a device, a transport, and per
/// channel a stream and a communicator of the group of all.
#pragma once

#include "test_world.hpp"
#include "troupe/comm/gloo/gloo_transport.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"
#include "troupe/comm/store/memory_store.hpp"
#include "troupe/test/comm/support/settle.hpp"
#include "troupe/test/comm/support/world_fixture.hpp"

#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::test {

class GlooRanks {
 public:
  explicit GlooRanks(int size, GlooOptions options = {}, int channel_count = 1)
      : world(size), all_(static_cast<std::size_t>(size)) {
    options.timeout = std::min<Duration>(options.timeout, patience);
    std::iota(all_.begin(), all_.end(), 0);
    const auto hub = make_memory_store_hub();
    for (int rank = 0; rank < size; ++rank) {
      auto& one = ranks_.emplace_back(std::make_unique<Rank>());
      one->store = make_memory_store(hub);
      one->transport = make_gloo_transport(options, *one->store);
      for (int channel = 0; channel < channel_count; ++channel) {
        one->streams.push_back(
            &one->device.create_host_stream("channel " + std::to_string(channel)));
      }
    }
    connect(1, channel_count);
  }
  GlooRanks(const GlooRanks&) = delete;
  GlooRanks& operator=(const GlooRanks&) = delete;
  /// Closes all at once: for each connection Gloo takes up to 10 ms.
  ~GlooRanks() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([this, rank] {
        at(rank).device.stop();
        close(rank);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  int size() const { return static_cast<int>(all_.size()); }
  HostDevice& device(int rank) { return at(rank).device; }
  HostStream& stream(int rank, int channel = 0) {
    return *at(rank).streams[static_cast<std::size_t>(channel)];
  }
  Communicator& communicator(int rank, int channel = 0) {
    return *at(rank).communicators[static_cast<std::size_t>(channel)];
  }
  std::vector<std::optional<Failure>> settle(int channel = 0) {
    std::vector<std::optional<Failure>> failures;
    for (int rank = 0; rank < size(); ++rank) {
      failures.push_back(test::settle(stream(rank, channel)).failure);
    }
    return failures;
  }

  /// Communicators for an epoch.
  void connect(std::uint64_t epoch, int channel_count = 1) {
    std::vector<std::thread> threads;
    std::vector<std::string> errors(all_.size());
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([this, rank, epoch, channel_count, &errors] {
        try {
          Rank& one = at(rank);
          for (int channel = 0; channel < channel_count; ++channel) {
            one.communicators.push_back(one.transport->connect(
                epoch, {.ranks = all_, .channel = channel}, world.link(rank)));
          }
        } catch (const std::exception& exception) {
          errors[static_cast<std::size_t>(rank)] = exception.what();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    REQUIRE(errors == std::vector<std::string>(errors.size()));
  }

  void close(int rank) { at(rank).communicators.clear(); }

  TestWorld world;

 private:
  struct Rank {
    std::unique_ptr<Store> store;
    std::unique_ptr<GroupTransport> transport;
    std::vector<std::unique_ptr<Communicator>> communicators;
    HostDevice device{StreamWorkers::threads};
    std::vector<HostStream*> streams;
  };

  Rank& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

  std::vector<int> all_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

/// One channel, for the contract suite.
class GlooThreads : public WorldFixture {
 public:
  explicit GlooThreads(int size, GlooOptions options = {}) : ranks(size, options) {}

  int size() const override { return ranks.size(); }
  Device& device(int rank) override { return ranks.device(rank); }
  Stream& stream(int rank) override { return ranks.stream(rank); }
  Communicator& communicator(int rank) override { return ranks.communicator(rank); }
  std::vector<std::optional<Failure>> settle() override { return ranks.settle(); }

  GlooRanks ranks;
};

/// The smallest segments and the least staging memory, so that small payloads take all turns that
/// large ones do.
struct GlooSmallSegments final : GlooThreads {
  explicit GlooSmallSegments(int size)
      : GlooThreads(size, {.segment_bytes = 64, .staging_bytes = 0}) {}
};

struct GlooRing final : GlooThreads {
  explicit GlooRing(int size)
      : GlooThreads(size,
                    {.sum_order = SumOrder::ring, .segment_bytes = 64, .staging_bytes = 200}) {}
};

}  // namespace troupe::test
