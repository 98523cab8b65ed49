// What a use shows of its parameters and gradients, and which gradients were written.
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

void RuntimeImpl::note_filling(const std::vector<UsedBucket>& buckets) {
  for (const UsedBucket& bucket : buckets) {
    if (bucket.gradient_slot != no_slot && bucket.first_contribution) {
      filling_[bucket.bucket] = bucket.gradient_slot;
      gradient_slots_[bucket.gradient_slot] = {
          bucket.bucket, std::vector<bool>(plan.buckets[bucket.bucket].parameters.size())};
    }
  }
}

void RuntimeImpl::note_reduced(const Answer& answer) {
  for (const BucketId bucket : answer.reduced) {
    gradient_slots_[filling_[bucket]].bucket = no_bucket;
    filling_[bucket] = no_slot;
  }
}

/// Ranges of the full gradient buffer that hold no gradient: gaps, and parameters not written.
Ranges RuntimeImpl::unwritten(const GradientSlot& slot) const {
  const BucketLayout& layout = layouts[slot.bucket];
  std::vector<Range> ranges = layout.gaps();
  for (std::size_t index = 0; index < slot.written.size(); ++index) {
    if (!slot.written[index] && layout.parameters()[index].numel > 0) {
      ranges.push_back(layout.parameters()[index]);
    }
  }
  return std::make_shared<const std::vector<Range>>(std::move(ranges));
}

/// Null where a use contributes to no gradient, or everything is written.
Unwritten RuntimeImpl::unwritten_of(const std::vector<UsedBucket>& buckets) const {
  std::shared_ptr<std::vector<UnwrittenRanges>> list;
  for (const UsedBucket& bucket : buckets) {
    if (bucket.gradient_slot == no_slot) {
      continue;
    }
    const GradientSlot& slot = gradient_slots_[bucket.gradient_slot];
    if (std::ranges::find(slot.written, false) != slot.written.end()) {
      if (!list) {
        list = std::make_shared<std::vector<UnwrittenRanges>>();
      }
      list->push_back({bucket.bucket, unwritten(slot)});
    }
  }
  return list;
}

const RuntimeImpl::OpenUse& RuntimeImpl::open_use(std::uint32_t use) const {
  if (use >= uses_.size() || !uses_[use].open) {
    throw Error(misuse("this use has ended; its parameters are gone"));
  }
  return uses_[use];
}

const RuntimeImpl::Place& RuntimeImpl::place(UnitId unit, std::string_view name) const {
  for (const Place& each : places_[unit]) {
    if (each.name == name) {
      return each;
    }
  }
  std::string text = "unit " + std::to_string(unit) + " '" + model.units()[unit].name +
                     "' has no parameter '" + std::string(name) + "'; it has";
  for (const Place& each : places_[unit]) {
    text += " '" + std::string(each.name) + "'";
  }
  throw Error(misuse(std::move(text)));
}

const UsedBucket& RuntimeImpl::used(const OpenUse& use, BucketId bucket) const {
  return *std::ranges::find_if(use.buckets,
                               [&](const UsedBucket& each) { return each.bucket == bucket; });
}

TensorView RuntimeImpl::parameter(std::uint32_t use, std::string_view name) const {
  const OpenUse& open = open_use(use);
  const Place& found = place(open.unit, name);
  const DType dtype = found.parameter->spec.dtype;
  const std::byte* slot = table_.slots[used(open, found.bucket).slot];
  return {found.name, &found.parameter->spec.shape, dtype,
          slot + found.range.offset * static_cast<std::int64_t>(size_of(dtype)), found.range.numel};
}

GradientView RuntimeImpl::gradient(std::uint32_t use, std::string_view name) {
  const OpenUse& open = open_use(use);
  const Place& found = place(open.unit, name);
  if (!open.backward) {
    throw Error(misuse("the gradient of '" + found.parameter->full_name +
                       "' was asked for in a forward; it is there in a backward"));
  }
  if (!found.parameter->spec.trainable) {
    throw Error(misuse("'" + found.parameter->full_name +
                       "' is frozen (trainable is false) and has no gradient"));
  }
  const SlotId slot = used(open, found.bucket).gradient_slot;
  const DType dtype = gradient_dtype();
  std::byte* data =
      table_.gradient_slots[slot] + found.range.offset * static_cast<std::int64_t>(size_of(dtype));
  std::vector<bool>& written = gradient_slots_[slot].written;
  const bool accumulate = written[found.index];
  written[found.index] = true;
  contributed_[found.parameter->id] = true;
  if (options.check_gradients) {
    uses_[use].contributed.push_back(
        static_cast<std::uint32_t>(&found - places_[open.unit].data()));
  }
  return {found.name, &found.parameter->spec.shape, dtype, data, found.range.numel, accumulate};
}

}  // namespace troupe
