#include "link_ranks.hpp"

#include "troupe/bench/stream_timing.hpp"
#include "troupe/comm/gloo/gloo_transport.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/store/memory_store.hpp"

#include <gloo/allgather.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <exception>
#include <future>
#include <numeric>
#include <thread>
#include <utility>

namespace troupe::bench {

namespace {

/// A world in which nothing goes wrong; if it does, the benchmark ends with what was seen.
class FairWeather final : public WorldLink {
 public:
  explicit FairWeather(int rank) : rank_(rank) {}
  int rank() const override { return rank_; }
  std::optional<Failure> failure() const override { return std::nullopt; }
  Failure suspect(Suspicion suspicion) override {
    return {.code = ErrorCode::network, .text = suspicion.text, .rank = suspicion.peer};
  }
  void abort(const Failure&) override {}
  std::optional<Failure> begins(const GroupName&, const LoggedLaunch&) override {
    return std::nullopt;
  }
  void watch(WatchedGroup&) override {}
  void forget(WatchedGroup&) override {}

 private:
  const int rank_;
};

/// Calls `body(index)` for all at once, each on a thread.
template <class Body>
void at_once(std::size_t count, const Body& body) {
  std::vector<std::future<void>> ends;
  ends.reserve(count);
  for (std::size_t index = 0; index < count; ++index) {
    ends.push_back(std::async(std::launch::async, [&body, index] { body(index); }));
  }
  for (std::future<void>& end : ends) {
    end.get();
  }
}

}  // namespace

class LinkRanks::Rank {
 public:
  Rank(int rank, int size, Host host, std::int64_t full_bytes, std::unique_ptr<Store> store)
      : rank_(rank),
        size_(size),
        host_(std::move(host)),
        link_(rank),
        full_(static_cast<std::size_t>(full_bytes) / sizeof(float), 1.0F),
        part_(full_.size() / static_cast<std::size_t>(size), 1.0F),
        store_(std::move(store)),
        stream_(device_.create_host_stream("rank." + std::to_string(rank))) {}

  /// Two sets of connections: ours, and for Gloo's collectives.
  void connect(gloo::rendezvous::Store& stock_store) {
    host_.run([&] {
      transport_ = make_gloo_transport({.address = host_.address}, *store_);
      GroupName group{.ranks = std::vector<int>(static_cast<std::size_t>(size_)), .channel = 0};
      std::iota(group.ranks.begin(), group.ranks.end(), 0);
      communicator_ = transport_->connect(1, group, link_);
      auto device = gloo::transport::tcp::CreateDevice(host_.address.c_str());
      auto context = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
      context->setTimeout(std::chrono::minutes{10});
      context->connectFullMesh(stock_store, device);
      stock_ = std::move(context);
    });
  }

  HostStream& stream() { return stream_; }

  void launch(Collective op, DType dtype, Ticket ticket) {
    const bool gathers = op == Collective::all_gather;
    const auto launched = communicator_->launch(
        {.op = op,
         .ticket = ticket,
         .dtype = dtype,
         .input = gathers ? part_.data() : full_.data(),
         .output = gathers ? full_.data() : part_.data(),
         .numel = static_cast<std::int64_t>(part_.size() * sizeof(float) / size_of(dtype))},
        stream_);
    if (!launched) {
      throw Error(launched.failure());
    }
  }

  void stock_all_gather(int count) {
    for (int i = 0; i < count; ++i) {
      gloo::AllgatherOptions options(stock_);
      options.setInput(part_.data(), part_.size());
      options.setOutput(full_.data(), part_.size() * static_cast<std::size_t>(size_));
      gloo::allgather(options);
    }
  }

 private:
  const int rank_;
  const int size_;
  const Host host_;
  FairWeather link_;
  std::vector<float> full_;
  std::vector<float> part_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<GroupTransport> transport_;
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<gloo::Context> stock_;
  HostDevice device_;
  HostStream& stream_;
};

LinkRanks::LinkRanks(const std::vector<Host>& hosts, std::int64_t full_bytes) {
  const auto hub = make_memory_store_hub();
  gloo::rendezvous::HashStore stock_store;
  for (const Host& host : hosts) {
    ranks_.push_back(std::make_unique<Rank>(static_cast<int>(ranks_.size()),
                                            static_cast<int>(hosts.size()), host, full_bytes,
                                            make_memory_store(hub)));
  }
  at_once(ranks_.size(), [&](std::size_t rank) { ranks_[rank]->connect(stock_store); });
}

LinkRanks::~LinkRanks() = default;

Nanoseconds LinkRanks::ours(Collective op, DType dtype, int count) {
  std::vector<HostStream*> streams;
  streams.reserve(ranks_.size());
  for (const auto& rank : ranks_) {
    streams.push_back(&rank->stream());
  }
  return time_on_streams(streams, [&] {
    for (int i = 0; i < count; ++i) {
      ++ticket_;
      for (const auto& rank : ranks_) {
        rank->launch(op, dtype, ticket_);
      }
    }
  });
}

Nanoseconds LinkRanks::stock_all_gather(int count) {
  const Nanoseconds begin = now_ns();
  at_once(ranks_.size(), [&](std::size_t rank) { ranks_[rank]->stock_all_gather(count); });
  return now_ns() - begin;
}

}  // namespace troupe::bench
