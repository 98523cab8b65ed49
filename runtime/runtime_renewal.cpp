// A step given up: what of a runtime is renewed, and what stays.
//
//     stays      model, options, plan, layouts, places; all memory: main weights, optimizer states
//                and counts as the last update left them, slots, gradients (whose contents are
//                dropped); versions, finished steps, sums of reports; streams that it computes on
//     renewed    process groups; scheduler and buckets, so the order of uses is the plan's again;
//                the events of slots, gradient slots and updates; open uses, gradients being
//                filled, a refusal kept for the next call; what the last step took
//
// Parameters are gathered from main weights, which only updates write, so they are those of the
// last update whatever the slots hold. The first reduce of the next step overwrites main gradients.
#include "troupe/runtime/checkpoint/save_in_progress.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

namespace troupe {

/// The innermost scope that is open, for messages; empty: none is.
std::string RuntimeImpl::open_scope() const {
  const auto innermost_first = std::views::reverse(uses_);
  const auto use = std::ranges::find_if(innermost_first, &OpenUse::open);
  if (use != innermost_first.end()) {
    return describe(*use);
  }
  if (updating_) {
    return "an update";
  }
  if (in_eval_) {
    return "an eval pass";
  }
  return in_micro_batch_ ? "a micro-batch" : "";
}

std::string RuntimeImpl::settle(TimePoint deadline) {
  const Duration left = std::max(deadline - context.clock().now(), Duration::zero());
  return actors_->quiesce(left) ? "" : "its collectives did not end after the failure";
}

/// Whether main weights may be neither those before an update nor those behind it. Once the streams
/// are idle, before they are recovered.
bool RuntimeImpl::half_updated() const {
  return half_updated_ ||
         std::ranges::any_of(updated_, [](const Event& event) { return !event.done(); });
}

/// A step whose gradients are finished, but which no update has followed, is given up with them.
std::uint64_t RuntimeImpl::steps_kept() const {
  return steps - (gradients_finished && !updated_since_ ? 1 : 0);
}

RuntimeStatement RuntimeImpl::statement() const {
  std::uint64_t hash = 14695981039346656037ULL;
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 1099511628211ULL;
  };  // FNV-1a
  RuntimeStatement statement{.steps = steps_kept(), .saves = save != nullptr && !save->ended()};
  for (const Bucket& bucket : plan.buckets) {
    const std::uint64_t version = versions[bucket.id];
    statement.updates = std::max(statement.updates, version);
    mix(version);
    mix(bucket.trainable ? 1 : 0);
    for (const ParameterId parameter : bucket.parameters) {
      mix(parameter);
    }
  }
  statement.versions = hash;
  return statement;
}

bool RuntimeImpl::end_actors() {
  schedule_before_ = schedule();
  most_held_before_ = most_held();
  return actors_->end();
}

void RuntimeImpl::renew(std::uint64_t common_steps, bool keep_save) {
  if (save && !keep_save) {
    save->give_up("a step was given up before all ranks had finished it");
    save.reset();
  }
  groups_ = make_process_groups(context, mesh, options.regather_group_size);
  std::ranges::fill(table_.gathered, Event{});
  std::ranges::fill(table_.reduced, Event{});
  std::ranges::fill(updated_, Event{});
  std::ranges::fill(filling_, no_slot);
  std::ranges::fill(gradient_slots_, GradientSlot{});
  uses_.clear();
  deferred_.reset();
  gradients_finished = false;
  contributed_.assign(contributed_.size(), false);
  micro_batches_ = 0;
  forget_step();
  spawn();
  context.steps += common_steps - steps;  // may well be one less
  steps = common_steps;
}

/// Parameters are up to date where they ever were. If the world fails again meanwhile, the next
/// call says so.
void RuntimeImpl::resume() {
  try {
    for (BucketId bucket = 0; bucket < versions.size() && !rank.failed(); ++bucket) {
      if (versions[bucket] > 0) {
        ask({.kind = TrainerEventKind::updated, .bucket = bucket});
      }
    }
  } catch (const Error& error) {
    if (!rank.failed()) {
      defer(error.failure());
    }
  }
}

}  // namespace troupe
