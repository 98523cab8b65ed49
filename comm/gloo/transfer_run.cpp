#include "troupe/comm/gloo/transfer_run.hpp"

#include "troupe/comm/kernels.hpp"

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <span>

namespace troupe {

using Way = Interruption::Way;

namespace {

constexpr int place_count = 3;

/// `const`: Gloo has one type for both ways; it only reads what it sends.
std::unique_ptr<gloo::transport::UnboundBuffer> unbound(gloo::Context& context,
                                                        const void* data,
                                                        std::size_t bytes) {
  return context.createUnboundBuffer(const_cast<void*>(data), bytes);
}

}  // namespace

std::byte* StagingMemory::at_least(std::int64_t bytes) {
  if (size_ < bytes) {
    bytes_ = std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes));
    size_ = bytes;
  }
  return bytes_.get();
}

TransferRun::TransferRun(gloo::Context* context,
                         const ConnectionWatch* watch,
                         const CollectiveCall& call,
                         std::uint64_t turn,
                         const TransferPlan& plan,
                         StagingMemory& staging,
                         Interruption& interruption)
    : context_(context),
      watch_(watch),
      call_(call),
      turn_(turn),
      plan_(plan),
      interruption_(interruption),
      size_(context == nullptr ? 1 : context->size),
      staging_(staging.at_least(plan.staging_bytes)),
      header_(header_of(call)),
      header_out_(header_),
      channels_(static_cast<std::size_t>(2 * lane_count * size_)),
      buffers_(channels_.size() * place_count) {
  for (const Way way : {Way::receive, Way::send}) {
    for (const Lane lane : {Lane::parts, Lane::results}) {
      for (int peer = 0; peer < size_; ++peer) {
        channel(way, lane, peer).next_slot = first_slot(header_, turn, lane);
      }
    }
  }
}

TransferRun::~TransferRun() = default;

RunEnd TransferRun::execute() {
  bool headers_awaited = size_ == 1;
  if (!headers_awaited) {
    start_headers();
  }
  // Payload moves while the headers do.
  const auto headers = [&] {
    const bool first = !headers_awaited;
    headers_awaited = true;
    return first ? await_headers() : RunEnd::done;
  };
  for (const Transfer& step : plan_.steps) {
    switch (step.kind) {
      case Transfer::Kind::receive:
        start(step, Way::receive);
        break;
      case Transfer::Kind::send:
        start(step, Way::send);
        break;
      case Transfer::Kind::await_receive:
      case Transfer::Kind::await_send: {
        if (const RunEnd end = headers(); end != RunEnd::done) {
          return end;
        }
        const bool receives = step.kind == Transfer::Kind::await_receive;
        if (!await(step, receives ? Way::receive : Way::send)) {
          return RunEnd::interrupted;
        }
        break;
      }
      case Transfer::Kind::sum:
        sum(step);
        break;
      case Transfer::Kind::copy:
        kernels::copy(pointer(step.at), pointer(plan_.sources[step.first_source]), step.bytes);
        break;
    }
  }
  return headers();
}

// ---- headers ------------------------------------------------------------------------------------

/// To the right, from the left: if all neighbours agree, all do.
void TransferRun::start_headers() {
  const int right = (context_->rank + 1) % size_;
  const int left = (context_->rank + size_ - 1) % size_;
  header_receiver_ = unbound(*context_, header_in_.data(), header_in_.size());
  header_sender_ = unbound(*context_, header_out_.data(), header_out_.size());
  peer_ = left;
  header_receiver_->recv(left, header_slot(turn_), 0, header_in_.size());
  peer_ = right;
  header_sender_->send(right, header_slot(turn_), 0, header_out_.size());
}

RunEnd TransferRun::await_headers() {
  if (!await(*header_receiver_, Way::receive, (context_->rank + size_ - 1) % size_)) {
    return RunEnd::interrupted;
  }
  if (header_in_ != header_) {
    return RunEnd::mismatch;
  }
  return await(*header_sender_, Way::send, (context_->rank + 1) % size_) ? RunEnd::done
                                                                         : RunEnd::interrupted;
}

// ---- payload ------------------------------------------------------------------------------------

std::byte* TransferRun::base(Place place) const {
  switch (place) {
    case Place::input:  // which the plan only reads
      return static_cast<std::byte*>(const_cast<void*>(call_.input));
    case Place::output:
      return static_cast<std::byte*>(call_.output);
    case Place::staging:
      break;
  }
  return staging_;
}

std::size_t TransferRun::bytes_of(Place place) const {
  if (place == Place::staging) {
    return static_cast<std::size_t>(plan_.staging_bytes);
  }
  const Collective whole =
      place == Place::input ? Collective::reduce_scatter : Collective::all_gather;
  return static_cast<std::size_t>(call_.numel) * size_of(call_.dtype) *
         static_cast<std::size_t>(call_.op == whole ? size_ : 1);
}

TransferRun::Channel& TransferRun::channel(Way way, Lane lane, int peer) {
  const int index = (static_cast<int>(way) * lane_count + static_cast<int>(lane)) * size_ + peer;
  return channels_[static_cast<std::size_t>(index)];
}

gloo::transport::UnboundBuffer& TransferRun::buffer(Way way, Lane lane, int peer, Place place) {
  const auto of_channel = static_cast<std::size_t>(&channel(way, lane, peer) - channels_.data());
  auto& buffer = buffers_[of_channel * place_count + static_cast<std::size_t>(place)];
  if (!buffer) {
    buffer = unbound(*context_, base(place), bytes_of(place));
  }
  return *buffer;
}

void TransferRun::start(const Transfer& step, Way way) {
  Channel& messages = channel(way, step.lane, step.peer);
  auto& memory = buffer(way, step.lane, step.peer, step.at.place);
  const std::uint64_t slot = messages.next_slot++;
  const auto offset = static_cast<std::size_t>(step.at.offset);
  const auto bytes = static_cast<std::size_t>(step.bytes);
  peer_ = step.peer;
  if (way == Way::receive) {
    memory.recv(step.peer, slot, offset, bytes);
  } else {
    memory.send(step.peer, slot, offset, bytes);
  }
  messages.under_way.push_back(&memory);
}

/// Messages of a channel are done in their order, so the earliest is the one that is done next in
/// its buffer.
bool TransferRun::await(const Transfer& step, Way way) {
  Channel& messages = channel(way, step.lane, step.peer);
  if (!await(*messages.under_way.front(), way, step.peer)) {
    return false;
  }
  messages.under_way.pop_front();
  return true;
}

bool TransferRun::await(gloo::transport::UnboundBuffer& buffer, Way way, int peer) {
  peer_ = peer;
  return interruption_.wait(buffer, way, [this] { watch_->look(peer_); });
}

void TransferRun::sum(const Transfer& step) const {
  std::vector<const void*> sources;
  sources.reserve(step.source_count);
  for (const Location& source :
       std::span(plan_.sources).subspan(step.first_source, step.source_count)) {
    sources.push_back(pointer(source));
  }
  kernels::sum(sources, call_.dtype, pointer(step.at),
               step.bytes / static_cast<std::int64_t>(size_of(call_.dtype)));
}

}  // namespace troupe
