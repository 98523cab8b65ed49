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
             {ActorTag::Kind::bucket, state.config.rank, setup.id},
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

void BucketLife::gather(const Gather& message) {
  if (!advance(BucketEvent::gather)) {
    retire(message.ticket);
    return;
  }
  std::byte* full = table_.slots[message.slot];
  const auto element = static_cast<std::int64_t>(size_of(setup_.dtype));
  Launch launch;
  launch.channel = Channel::gather;
  launch.call = {.op = Collective::all_gather,
                 .ticket = message.ticket,
                 .bucket = setup_.id,
                 .label = setup_.label.c_str(),
                 .dtype = setup_.dtype,
                 .input = setup_.main_weights,
                 .output = full,
                 .numel = setup_.shard_numel};
  if (setup_.dtype != DType::f32) {
    // No narrow shard is kept: the main weights are cast into this rank's part, then gathered in
    // place.
    std::byte* own = full + state_.config.rank * setup_.shard_numel * element;
    launch.cast = {setup_.main_weights, setup_.dtype, own, setup_.shard_numel};
    launch.call.input = own;
  }
  launch.after = message.after;
  launch.recorded = &table_.gathered[message.slot];
  launch.bucket = this;
  open_.push_back(message.ticket);
  send(comm_, std::move(launch));
}

void BucketLife::reduce(const Reduce& message) {
  if (life_ == BucketState::failed) {
    retire(message.ticket);
    return;
  }
  if (std::exchange(gradient_, GradientState::empty) != GradientState::filling) {
    fault("a reduce of a gradient that is not filling", message.ticket);
    retire(message.ticket);
    return;
  }
  std::byte* full = table_.gradient_slots[message.gradient_slot];
  const auto element = static_cast<std::int64_t>(size_of(setup_.gradient_dtype));
  std::byte* own = full + state_.config.rank * setup_.shard_numel * element;
  Launch launch;
  launch.channel = Channel::reduce;
  launch.call = {.op = Collective::reduce_scatter,
                 .ticket = message.ticket,
                 .bucket = setup_.id,
                 .label = setup_.label.c_str(),
                 .dtype = setup_.gradient_dtype,
                 .input = full,
                 .output = own,  // in place, at this rank's own offset
                 .numel = setup_.shard_numel};
  launch.after = message.after;
  launch.zero = {full, element, message.unwritten != nullptr ? message.unwritten : setup_.gaps};
  launch.accumulate = {setup_.main_gradients, setup_.gradient_dtype, own, setup_.shard_numel,
                       message.first};
  launch.recorded = &table_.reduced[message.gradient_slot];
  launch.bucket = this;
  open_.push_back(message.ticket);
  send(comm_, std::move(launch));
}

void BucketLife::complete(const Completed& message) {
  const auto found = std::ranges::find(open_, message.ticket);
  if (found == open_.end()) {
    fault("a completion of a ticket that is not open", message.ticket);
    return;
  }
  open_.erase(found);
  retire(message.ticket);
}

void BucketLife::retire(Ticket /*ticket*/) {
  words_.answered.fetch_add(1);
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
