/// Carries a transfer plan out over the connections of one group.
///
/// Thread rules: one thread.
#pragma once

#include "troupe/comm/gloo/call_header.hpp"
#include "troupe/comm/gloo/connection_watch.hpp"
#include "troupe/comm/gloo/interruption.hpp"
#include "troupe/comm/gloo/transfer_plan.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace gloo {
class Context;
}

namespace troupe {

/// Memory for parts that wait to be summed; grows, and is kept for the collectives to come.
class StagingMemory {
 public:
  std::byte* at_least(std::int64_t bytes);

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::int64_t size_ = 0;
};

enum class RunEnd : std::uint8_t { done, interrupted, mismatch };

class TransferRun {
 public:
  /// `context` and `watch` are null for a group of one. The call has been checked; its buffers and
  /// all that is passed by reference outlive this.
  TransferRun(gloo::Context* context,
              const ConnectionWatch* watch,
              const CollectiveCall& call,
              std::uint64_t turn,
              const TransferPlan& plan,
              StagingMemory& staging,
              Interruption& interruption);
  TransferRun(const TransferRun&) = delete;
  TransferRun& operator=(const TransferRun&) = delete;
  /// After anything but `done`, close the connections first: messages under way would go on into
  /// the buffers.
  ~TransferRun();

  /// Mismatch: the left neighbour's header differs. Throws what Gloo throws.
  RunEnd execute();

  /// Whom the run waited for or wrote to last, a rank of the group.
  int peer() const { return peer_; }
  /// What the left neighbour has launched, after a mismatch.
  LoggedCall other_call() const { return call_of(header_in_); }

 private:
  /// Messages of one way, with one peer, on one lane.
  struct Channel {
    std::uint64_t next_slot = 0;
    std::deque<gloo::transport::UnboundBuffer*> under_way;
  };

  std::byte* base(Place place) const;
  std::size_t bytes_of(Place place) const;
  std::byte* pointer(const Location& location) const {
    return base(location.place) + location.offset;
  }
  Channel& channel(Interruption::Way way, Lane lane, int peer);
  gloo::transport::UnboundBuffer& buffer(Interruption::Way way, Lane lane, int peer, Place place);
  void start_headers();
  RunEnd await_headers();
  void start(const Transfer& step, Interruption::Way way);
  bool await(const Transfer& step, Interruption::Way way);
  bool await(gloo::transport::UnboundBuffer& buffer, Interruption::Way way, int peer);
  void sum(const Transfer& step) const;

  gloo::Context* const context_;
  const ConnectionWatch* const watch_;
  const CollectiveCall& call_;
  const std::uint64_t turn_;
  const TransferPlan& plan_;
  Interruption& interruption_;
  const int size_;
  std::byte* const staging_;

  const CallHeader header_;
  CallHeader header_out_;
  CallHeader header_in_{};
  std::unique_ptr<gloo::transport::UnboundBuffer> header_sender_;
  std::unique_ptr<gloo::transport::UnboundBuffer> header_receiver_;
  std::vector<Channel> channels_;
  /// One for each channel and place, made on first use: Gloo counts what is done for each.
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers_;
  int peer_ = -1;
};

}  // namespace troupe
