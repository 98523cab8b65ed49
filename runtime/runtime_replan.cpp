// Planning anew in the middle of training: another RuntimeImpl of the same parameters takes over.
#include "troupe/runtime/checkpoint/save_in_progress.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

/// Bucket by bucket of the old plan, so that no more than one is held unsharded.
void RuntimeImpl::take_over(RuntimeImpl& old) {
  begin_update(nullptr);
  for (const Bucket& bucket : old.plan.buckets) {
    const Buffer whole = old.gather_bucket(bucket.id);
    place_whole(old, bucket.id, whole.as<float>(), {});
  }
  for (auto& [name, buffers] : old.states) {
    for (const Bucket& bucket : old.plan.buckets) {
      if (old.states_made.at(name)[bucket.id]) {
        const Buffer whole = old.gather_bucket(bucket.id, DType::f32, buffers[bucket.id].data());
        place_whole(old, bucket.id, whole.as<float>(), name);
      }
    }
  }
  counts = old.counts;
  for (const Parameter& parameter : model.parameters()) {
    for (auto& [name, numbers] : counts) {
      numbers[parameter.id] = parameter.spec.trainable ? numbers[parameter.id] : 0;
    }
    const BucketId bucket = plan.bucket_of[parameter.id];
    versions[bucket] = std::max(versions[bucket], old.versions[old.plan.bucket_of[parameter.id]]);
  }
  for (const Bucket& bucket : plan.buckets) {
    if (versions[bucket.id] > 0) {  // else it was never initialised
      finish_update(bucket.id, nullptr, true);
      --versions[bucket.id];  // the values are the same
    }
  }
  end_update(true, false);
  save = std::exchange(old.save, nullptr);
  if (save) {
    save->owner = weak_from_this();
  }
  steps = old.steps;
  updated_since_ = old.updated_since_;
  schedule_before_ = old.schedule();
  most_held_before_ = old.most_held();
  launches_at_step_ = old.launches_at_step_;
  launches_last_step_ = old.launches_last_step_;
  bytes_at_step_ = old.bytes_at_step_;
  bytes_last_step_ = old.bytes_last_step_;
  step_began_ = old.step_began_;
  time_last_step_ = old.time_last_step_;
  time_steps_ = old.time_steps_;
  steps_timed_ = old.steps_timed_;
}

/// This rank's parts of what `whole` holds of an old bucket: weights, or a named state.
void RuntimeImpl::place_whole(const RuntimeImpl& old,
                              BucketId from,
                              const float* whole,
                              std::string_view state_name) {
  const std::vector<ParameterId>& members = old.plan.buckets[from].parameters;
  for (std::size_t index = 0; index < members.size(); ++index) {
    const BucketId to = plan.bucket_of[members[index]];
    if (!state_name.empty() && !plan.buckets[to].trainable) {
      continue;
    }
    // On every rank, also where nothing of it lies: the next plan gathers what was made.
    float* const own_state = state_name.empty() ? nullptr : state(state_name, to).data();
    const float* values = whole + old.layouts[from].parameters()[index].offset;
    for (const ShardPiece& piece : layouts[to].pieces(groups_.of(plan.buckets[to]).member)) {
      if (plan.buckets[to].parameters[piece.index] == members[index]) {
        const float* from_here = values + piece.parameter_offset;
        if (state_name.empty()) {
          store_weights(to, piece.shard_offset, from_here, piece.numel);
        } else {
          std::copy_n(from_here, piece.numel, own_state + piece.shard_offset);
        }
      }
    }
  }
}

}  // namespace troupe
