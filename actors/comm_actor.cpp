#include "troupe/actors/comm_actor.hpp"

#include <exception>
#include <utility>

namespace troupe {

namespace {

std::int64_t bytes_handed_over(const CollectiveCall& call, const Communicator& group) {
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  if (call.op == Collective::broadcast && call.root != group.rank()) {
    return 0;
  }
  return call.numel * element * (call.op == Collective::reduce_scatter ? group.size() : 1);
}

/// One step of FNV-1a over the words of a launch: equal sequences have equal hashes on all ranks.
std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  return (hash ^ word) * 1099511628211ULL;
}

}  // namespace

std::string to_string(const LaunchRecord& record) {
  std::string text = "ticket " + std::to_string(record.ticket) + " " + to_string(record.op);
  if (record.bucket != no_bucket) {
    text += " bucket " + std::to_string(record.bucket);
  }
  if (record.runtime > 1) {
    text += " of runtime " + std::to_string(record.runtime);
  }
  text += " '" + record.label + "' numel " + std::to_string(record.numel) + " " +
          to_string(record.dtype);
  return record.axis == GroupAxis::world ? text : text + ", group " + to_string(record.axis);
}

std::string to_string(const LaunchDump& dump) {
  std::string text = "as rank " + std::to_string(dump.rank) + " saw it: " + dump.failure.text +
                     "\n  last launches:";
  for (const LaunchDump::Launch& launch : dump.launches) {
    text += "\n  " + to_string(launch.record) + " (" + launch.state + ")";
  }
  return text;
}

Comm::Comm(caf::actor_config& config,
           const Routing& routing,
           RankState& state,
           SupervisorActor supervisor)
    : Routed(config,
             routing,
             {ActorTag::Kind::comm, state.config.rank},
             routing.home,
             state.alive,
             *state.config.waiter),
      state_(state),
      supervisor_(std::move(supervisor)) {}

Comm::behavior_type Comm::make_behavior() {
  return {
      [this](const Launch& launch) { receive(launch); },
      [this](const StreamDone& message) { complete(message); },
      [this](const Tick&) { check_held_back(); },
      [this](const Stop&) { stop(); },
  };
}

void Comm::receive(const Launch& launch) {
  const Ticket ticket = launch.call.ticket;
  if (stopped_) {
    answer({launch.bucket, launch.own}, ticket, failure_);
    return;
  }
  if (ticket != next_) {
    if (held_back_.empty()) {
      held_since_ = state_.config.clock->now();
    }
    held_back_.emplace(ticket, launch);
    return;
  }
  issue(launch);
  while (!stopped_ && !held_back_.empty() && held_back_.begin()->first == next_) {
    const Launch held = std::move(held_back_.begin()->second);
    held_back_.erase(held_back_.begin());
    held_since_ = state_.config.clock->now();
    issue(held);
  }
}

void Comm::issue(const Launch& launch) {
  const auto index = static_cast<std::size_t>(launch.channel);
  const RankConfig::Queue& queue = state_.config.queues[index];
  Device& device = *state_.config.device;
  Stream& stream = *queue.stream;
  for (const Event& event : launch.after) {
    stream.wait(event);
  }
  if (launch.zero.ranges != nullptr) {
    for (const Range& range : *launch.zero.ranges) {
      device.zero(stream, launch.zero.data + range.offset * launch.zero.element_bytes,
                  range.numel * launch.zero.element_bytes);
    }
  }
  if (const CastStep& cast = launch.cast; cast.numel > 0) {
    device.cast(stream, cast.from_dtype, cast.from, cast.dtype, cast.to, cast.numel);
    trace(stream, launch, "cast");
  }
  Communicator& group = launch.group != nullptr ? *launch.group : *queue.communicator;
  if (auto launched = group.launch(launch.call, stream); !launched) {
    stopped_ = true;  // nothing behind it may be launched; the supervisor's Stop answers the rest
    failure_ = launched.failure();
    send(supervisor_, Failed{launched.failure()});
    // The zeroing and the cast are on the stream already: their memory is in use until they end.
    follow(stream, launch, false);
    return;
  }
  trace(stream, launch, to_string(launch.call.op));
  if (launch.copy.bytes > 0) {
    device.copy(stream, launch.copy.to, launch.copy.from, launch.copy.bytes);
    trace(stream, launch, "keep");
  }
  const AccumulateStep& sum = launch.accumulate;
  if (sum.numel > 0 && sum.overwrite) {
    device.cast(stream, sum.dtype, sum.part, sum.sum_dtype, sum.sum, sum.numel);
    trace(stream, launch, "overwrite");
  } else if (sum.numel > 0) {
    device.accumulate(stream, sum.sum_dtype, sum.sum, sum.dtype, sum.part, sum.numel);
    trace(stream, launch, "accumulate");
  }
  const Event recorded = stream.record();
  state_.last_event[index] = recorded;
  if (Event* const to = launch.own ? &launch.own->recorded : launch.recorded; to != nullptr) {
    *to = recorded;
  }
  note(launch, group);
  ++next_;
  state_.launched.store(launch.call.ticket);
  state_.config.waiter->notify();
  follow(stream, launch, true);
}

/// What was issued to the stream just now becomes a span when it is over.
void Comm::trace(Stream& stream, const Launch& launch, const char* what) const {
  RankTrace* const trace = state_.config.trace;
  if (trace == nullptr) {
    return;
  }
  const TraceRow row =
      launch.channel == Channel::gather ? RankTrace::gather_row : RankTrace::reduce_row;
  std::string label = launch.call.label;
  if (launch.axis != GroupAxis::world) {
    label += std::string(" over ") + to_string(launch.axis);
  }
  stream.notify([trace, row, what, label = std::move(label), ticket = launch.call.ticket,
                 bucket = launch.call.bucket](const StreamReport& report) {
    trace->add({row, what, label, report.started, report.finished, ticket, bucket,
                report.failure.has_value()});
  });
}

/// Hears of the end of what was issued for a ticket, whether the collective was launched or not.
void Comm::follow(Stream& stream, const Launch& launch, bool launched) {
  in_flight_.emplace(launch.call.ticket, Asker{launch.bucket, launch.own, launched});
  stream.notify([self = CommActor{this}, ticket = launch.call.ticket](const StreamReport& report) {
    post(self, StreamDone{ticket, report}, nullptr);  // at home on its own thread, wherever we are
  });
}

void Comm::complete(const StreamDone& message) {
  const auto found = in_flight_.find(message.ticket);
  if (found == in_flight_.end()) {
    send(supervisor_,
         Failed{{.code = ErrorCode::internal,
                 .text = "rank " + std::to_string(state_.config.rank) + ": completion of ticket " +
                         std::to_string(message.ticket) + ", which is not in flight",
                 .rank = state_.config.rank,
                 .ticket = message.ticket}});
    return;
  }
  const Asker asker = std::move(found->second);
  in_flight_.erase(found);
  if (asker.launched) {
    if (const Ticket oldest = log_.front().record.ticket; message.ticket >= oldest) {
      log_[message.ticket - oldest].state = message.report.failure ? "failed" : "done";
    }
    state_.completed.fetch_add(1);
    state_.config.waiter->notify();
  }
  if (message.report.failure) {
    Failure failure = *message.report.failure;
    if (failure.rank < 0) {  // of the stream, which does not know whose it is
      failure.rank = state_.config.rank;
      failure.ticket = message.ticket;
      failure.text = "rank " + std::to_string(failure.rank) + ": " + failure.text +
                     " (found at the end of ticket " + std::to_string(failure.ticket) + ")";
    }
    send(supervisor_, Failed{std::move(failure)});
  }
  answer(asker, message.ticket, message.report.failure);
}

void Comm::check_held_back() {
  if (stopped_ || held_back_.empty() ||
      state_.config.clock->now() - held_since_ < state_.config.timeout) {
    return;
  }
  const CollectiveCall& first = held_back_.begin()->second.call;
  send(supervisor_, Failed{{.code = ErrorCode::timeout,
                            .text = "rank " + std::to_string(state_.config.rank) + ": ticket " +
                                    std::to_string(next_) +
                                    " was never launched; waiting behind it: " + describe(first),
                            .rank = state_.config.rank,
                            .ticket = next_}});
}

void Comm::stop() {
  stopped_ = true;
  failure_ = state_.failure;
  for (const auto& [ticket, launch] : held_back_) {
    answer({launch.bucket, launch.own}, ticket, failure_);
  }
  held_back_.clear();
  dump_log();
}

void Comm::dump_log() {
  if (std::exchange(dumped_, true)) {
    return;
  }
  const LaunchDump dump{state_.config.rank, state_.failure, {log_.begin(), log_.end()}};
  if (state_.config.log) {
    state_.config.log(to_string(dump));
  }
  if (state_.config.on_dump) {
    state_.config.on_dump(dump);
  }
}

void Comm::answer(const Asker& asker, Ticket ticket, std::optional<Failure> failure) {
  if (asker.bucket) {
    send(asker.bucket, Completed{ticket, std::move(failure)});
  }
  if (asker.own) {
    asker.own->over.store(true);
    state_.config.waiter->notify();
  }
}

void Comm::note(const Launch& launch, const Communicator& group) {
  const CollectiveCall& call = launch.call;
  const auto op = static_cast<std::size_t>(call.op);
  state_.launches[op].fetch_add(1);
  state_.bytes_sent[op].fetch_add(static_cast<std::uint64_t>(bytes_handed_over(call, group)));
  std::uint64_t hash = state_.launch_hash.load();
  for (const std::uint64_t word :
       {call.ticket, static_cast<std::uint64_t>(call.op), static_cast<std::uint64_t>(call.runtime),
        static_cast<std::uint64_t>(call.bucket), static_cast<std::uint64_t>(call.dtype),
        static_cast<std::uint64_t>(call.numel), static_cast<std::uint64_t>(call.root),
        static_cast<std::uint64_t>(launch.axis)}) {
    hash = mix(hash, word);
  }
  state_.launch_hash.store(hash);
  LaunchRecord record{call.ticket, call.op,        call.bucket, call.dtype,   call.numel,
                      call.root,   launch.channel, launch.axis, call.runtime, call.label};
  if (state_.config.on_launch) {
    try {
      state_.config.on_launch(record);
    } catch (const std::exception& exception) {
      observer_failed(exception.what());
    } catch (...) {
      observer_failed("an exception that is not a std::exception");
    }
  }
  if (log_.size() == launch_log_size) {
    log_.pop_front();
  }
  log_.push_back({std::move(record)});
}

void Comm::observer_failed(const std::string& what) {
  send(supervisor_, Failed{{.code = ErrorCode::peer_failed,
                            .text = "rank " + std::to_string(state_.config.rank) +
                                    " failed at WorldOptions::on_launch: " + what,
                            .rank = state_.config.rank}});
}

void Comm::on_exit() {
  if (state_.failed.load()) {
    dump_log();  // where the end of the world overtakes the supervisor's Stop
  }
  supervisor_ = nullptr;
  in_flight_.clear();
  held_back_.clear();
  Routed::on_exit();
}

}  // namespace troupe
