// Waiting: for what the trainer has issued on its streams, and for what was launched.
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

/// Until everything launched so far is over: what `overlap = false` means.
void RuntimeImpl::await_launches() {
  const auto& last = rank.state().last_event;
  rank.wait(
      rank.next_ticket() - 1,
      [&] { return std::ranges::all_of(last, [](const Event& event) { return event.done(); }); },
      "the collectives of a call");
}

/// Messages carry a bounded number of events, one per stream.
void RuntimeImpl::check_stream(Stream* stream) const {
  if (stream != nullptr && streams_.size() == EventSet::capacity &&
      std::ranges::find(streams_, stream) == streams_.end()) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "a runtime computes on at most " + std::to_string(EventSet::capacity) +
                         " streams; '" + stream->name() + "' would be one more"});
  }
}

/// Once the call is not refused any more: a refused one changes nothing.
void RuntimeImpl::admit(Stream* stream) {
  if (stream != nullptr && std::ranges::find(streams_, stream) == streams_.end()) {
    streams_.push_back(stream);
  }
}

/// What the trainer has issued on its streams may read and write the slots. Those streams do not
/// notify our waiter, so it looks now and then.
bool RuntimeImpl::await_streams(Duration limit) {
  const TimePoint deadline = context.clock().now() + limit;
  return std::ranges::all_of(
      streams_, [&](Stream* stream) { return await_event(stream->record(), deadline, false); });
}

/// An event on one of the trainer's streams, or that stream's failure; with `or_failed` also that
/// of the rank.
bool RuntimeImpl::await_event(const Event& event, TimePoint deadline, bool or_failed) {
  constexpr std::chrono::milliseconds look_interval{1};
  const auto over = [&] {
    return (or_failed && rank.failed()) || event.done() || event.stream->failure().has_value();
  };
  while (!over()) {
    const TimePoint now = context.clock().now();
    if (now >= deadline) {
      return false;
    }
    static_cast<void>(
        rank.config().waiter->wait(over, std::min<TimePoint>(deadline, now + look_interval)));
  }
  return true;
}

/// The last update of a bucket may still read its gradients and write its weights. A bucket that
/// was gathered since is ordered behind it by its gather; one that nobody used is not.
void RuntimeImpl::await_update(BucketId bucket, Stream* stream) {
  const Event& event = updated_[bucket];
  if (!event.done()) {  // describing it takes longer than looking
    await_work(event, stream, "the last update of bucket " + plan.describe(bucket, model), bucket);
  }
}

/// Main weights that lie in a slot may not change while a use that has ended is still computed on
/// its stream: it reads them there.
void RuntimeImpl::await_uses(Stream* stream) {
  const bool in_slots = std::ranges::any_of(
      plan.buckets, [&](const Bucket& bucket) { return weights_in_slot(bucket.id); });
  if (in_slots) {
    for (Stream* each : streams_) {
      if (each != stream) {
        await_work(each->record(), stream, "what was computed", no_bucket);
      }
    }
  }
}

/// What the trainer has issued: `stream` goes on behind it, or the calling thread does.
void RuntimeImpl::await_work(const Event& event,
                             Stream* stream,
                             const std::string& what,
                             BucketId bucket) {
  if (stream != nullptr) {
    stream->wait(event);
    return;
  }
  static_cast<void>(await_event(event, context.clock().now() + context.timeout(), true));
  rank.throw_if_failed();
  if (event.done()) {
    return;
  }
  const std::string who = "rank " + std::to_string(context.rank()) + ": ";
  const std::string where = what + " on stream '" + event.stream->name() + "'";
  const std::optional<Failure> failure = event.stream->failure();
  rank.fail_and_throw({.code = failure ? failure->code : ErrorCode::timeout,
                       .text = failure ? who + where + " failed: " + failure->text
                                       : who + "waited too long for " + where,
                       .rank = context.rank(),
                       .bucket = bucket});
}

}  // namespace troupe
