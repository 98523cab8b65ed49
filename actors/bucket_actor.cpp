#include "troupe/actors/bucket_actor.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace troupe {

BucketLife::BucketLife(caf::actor_config& config,
                       const Routing& routing,
                       RankState& state,
                       BucketSetup setup,
                       SlotTable& table,
                       RuntimeWords& words,
                       CommActor comm,
                       SupervisorActor supervisor)
    : Routed(config,
             routing,
             {ActorTag::Kind::bucket, state.config.rank, setup.runtime, setup.id},
             nullptr,
             words.alive,
             *state.config.waiter),
      state_(state),
      setup_(std::move(setup)),
      table_(table),
      words_(words),
      comm_(std::move(comm)),
      supervisor_(std::move(supervisor)) {
  open_.reserve(8);
  trace(std::nullopt, life_);
}

BucketLife::behavior_type BucketLife::make_behavior() {
  return {
      [this](const Gather& message) { gather(message); },
      [this](const BeginUse&) {
        if (advance(BucketEvent::use)) {
          ++uses_;
        }
      },
      [this](const EndUse&) {
        if (advance(uses_ > 1 ? BucketEvent::release : BucketEvent::release_last)) {
          --uses_;
        }
      },
      [this](const Evict&) { advance(BucketEvent::evict); },
      [this](const Contribute&) {
        if (life_ != BucketState::failed &&
            std::exchange(gradient_, GradientState::filling) != GradientState::empty) {
          fault("a second gradient slot for a gradient that is filling", 0);
        }
      },
      [this](const Reduce& message) { reduce(message); },
      [this](const SumReplicas& message) { sum_replicas(message); },
      [this](const StepEnd&) { advance(BucketEvent::step_end); },
      [this](const Abandon&) { advance(BucketEvent::abandon); },
      [this](const Completed& message) { complete(message); },
      [this](const Stop&) { advance(BucketEvent::fail); },
  };
}

/// Counts the bucket elsewhere; not at all before and after its life.
void BucketLife::trace(std::optional<BucketState> from, std::optional<BucketState> to) const {
  RankTrace* const trace = state_.config.trace;
  if (trace == nullptr || from == to) {
    return;
  }
  const TimePoint now = state_.config.clock->now();
  if (from) {
    trace->count(counter_of(*from), -1, now);
  }
  if (to) {
    trace->count(counter_of(*to), 1, now);
  }
}

bool BucketLife::advance(BucketEvent event) {
  const std::optional<BucketState> next = next_state(life_, event);
  if (!next) {
    fault(std::string("no row for '") + to_string(event) + "' in state '" + to_string(life_) + "'",
          0);
    return false;
  }
  trace(life_, next);
  life_ = *next;
  words_.states[setup_.id].store(life_, std::memory_order_relaxed);
  return life_ != BucketState::failed;
}

/// What all launches of this bucket have in common.
Launch BucketLife::launch_of(Channel channel, const Group& group, Collective op, Ticket ticket) {
  Launch launch;
  launch.channel = channel;
  launch.axis = group.axis;
  launch.group = channel == Channel::gather ? group.gathers : group.reduces;
  launch.call.op = op;
  launch.call.ticket = ticket;
  launch.call.runtime = setup_.runtime;
  launch.call.bucket = setup_.id;
  launch.call.label = setup_.label.c_str();
  launch.bucket = this;
  open_.push_back(ticket);
  return launch;
}

void BucketLife::gather(const Gather& message) {
  if (!advance(BucketEvent::gather)) {
    retire(1);
    return;
  }
  std::byte* full = table_.slots[message.slot];
  const auto element = static_cast<std::int64_t>(size_of(setup_.dtype));
  Launch launch;
  if (message.again) {
    launch = launch_of(Channel::gather, setup_.regather, Collective::all_gather, message.ticket);
    launch.call.input = setup_.kept;
    launch.call.numel = setup_.kept_range.numel;
  } else {
    launch = launch_of(Channel::gather, setup_.group, setup_.unshard_by, message.ticket);
    std::byte* own = full + setup_.own.offset * element;
    launch.call.input = setup_.main_weights;
    if (setup_.dtype != setup_.weight_dtype) {
      // No narrow shard is kept: the main weights are cast into this rank's part, then sent from
      // there.
      launch.cast = {setup_.weight_dtype, setup_.main_weights, setup_.dtype, own, setup_.own.numel};
      launch.call.input = own;
    }
    if (setup_.unshard_by == Collective::broadcast) {
      launch.call.root = setup_.owner;
      launch.call.numel = setup_.numel;
    } else {
      launch.call.numel = setup_.own.numel;
    }
    if (setup_.kept != nullptr) {
      launch.copy = {full + setup_.kept_range.offset * element, setup_.kept,
                     setup_.kept_range.numel * element};
    }
  }
  launch.call.dtype = setup_.dtype;
  launch.call.output = full;
  launch.after = message.after;
  launch.recorded = &table_.gathered[message.slot];
  send(comm_, std::move(launch));
}

void BucketLife::reduce(const Reduce& message) {
  const int tickets = setup_.sum_each_reduce ? 2 : 1;
  if (life_ == BucketState::failed) {
    retire(tickets);
    return;
  }
  if (std::exchange(gradient_, GradientState::empty) != GradientState::filling) {
    fault("a reduce of a gradient that is not filling", message.ticket);
    retire(tickets);
    return;
  }
  std::byte* filled = table_.gradient_slots[message.gradient_slot];
  std::byte* full = setup_.staging != nullptr ? setup_.staging : filled;
  const auto element = static_cast<std::int64_t>(size_of(setup_.reduce_dtype));
  std::byte* own = full + setup_.own.offset * element;
  Launch launch = launch_of(Channel::reduce, setup_.group, setup_.reduce_by, message.ticket);
  launch.call.dtype = setup_.reduce_dtype;
  launch.call.input = full;
  launch.call.output = own;  // in place, at this rank's own offset
  if (setup_.reduce_by == Collective::reduce) {
    launch.call.root = setup_.owner;
    launch.call.numel = setup_.numel;
  } else {
    launch.call.numel = setup_.own.numel;
  }
  launch.after = message.after;
  launch.zero = {filled, static_cast<std::int64_t>(size_of(setup_.gradient_dtype)),
                 message.unwritten != nullptr ? message.unwritten : setup_.gaps};
  if (setup_.staging != nullptr) {
    launch.cast = {setup_.gradient_dtype, filled, setup_.reduce_dtype, full, setup_.numel};
  }
  const AccumulateStep accumulate{.sum_dtype = setup_.main_gradient_dtype,
                                  .sum = setup_.main_gradients,
                                  .dtype = setup_.reduce_dtype,
                                  .part = own,
                                  .numel = setup_.own.numel,
                                  .overwrite = message.first};
  if (!setup_.sum_each_reduce) {
    launch.recorded = &table_.reduced[message.gradient_slot];
    launch.accumulate = accumulate;
    send(comm_, std::move(launch));
    return;
  }
  send(comm_, std::move(launch));
  Launch sum =
      launch_of(Channel::reduce, setup_.replicas, Collective::all_reduce, message.ticket + 1);
  sum.call.dtype = setup_.reduce_dtype;
  sum.call.input = own;
  sum.call.output = own;
  sum.call.numel = setup_.own.numel;
  sum.accumulate = accumulate;
  sum.recorded = &table_.reduced[message.gradient_slot];
  send(comm_, std::move(sum));
}

void BucketLife::sum_replicas(const SumReplicas& message) {
  if (life_ == BucketState::failed) {
    retire(1);
    return;
  }
  Launch launch =
      launch_of(Channel::reduce, setup_.replicas, Collective::all_reduce, message.ticket);
  launch.call.dtype = setup_.main_gradient_dtype;
  launch.call.input = setup_.main_gradients;
  launch.call.output = setup_.main_gradients;
  launch.call.numel = setup_.own.numel;
  send(comm_, std::move(launch));
}

void BucketLife::complete(const Completed& message) {
  const auto found = std::ranges::find(open_, message.ticket);
  if (found == open_.end()) {
    fault("a completion of a ticket that is not open", message.ticket);
    return;
  }
  open_.erase(found);
  retire(1);
}

void BucketLife::retire(int tickets) {
  words_.answered.fetch_add(static_cast<std::uint64_t>(tickets));
  state_.config.waiter->notify();
}

void BucketLife::fault(const std::string& what, Ticket ticket) {
  Failure failure{.code = ErrorCode::internal,
                  .text = "rank " + std::to_string(state_.config.rank) + ", bucket " +
                          std::to_string(setup_.id) + " '" + setup_.label + "': " + what +
                          (ticket != 0 ? " (ticket " + std::to_string(ticket) + ")" : ""),
                  .rank = state_.config.rank,
                  .ticket = ticket,
                  .bucket = setup_.id};
#ifndef NDEBUG
  std::fprintf(stderr, "%s\n", failure.text.c_str());
  std::abort();  // ours to fix: stop where it happened
#endif
  send(supervisor_, Failed{std::move(failure)});
}

void BucketLife::on_exit() {
  trace(life_, std::nullopt);
  comm_ = nullptr;
  supervisor_ = nullptr;
  Routed::on_exit();
}

}  // namespace troupe
