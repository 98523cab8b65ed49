// What checkpoints need of a runtime: the place between two steps, words from all ranks, whole
// buckets.
#include "troupe/runtime/checkpoint/save_in_progress.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {

void RuntimeImpl::require_between_steps(const char* what, bool drops) {
  const Call guard(*this, what);
  const bool awaits_update = gradients_finished && !updated_since_ && !drops;
  const char* const where = updating_               ? "inside an update"
                            : !open_scope().empty() ? "while a scope is open"
                            : micro_batches_ > 0    ? "before finish_gradients"
                            : awaits_update ? "before the update of the gradients just finished"
                                            : nullptr;
  if (where != nullptr) {
    throw Error({.code = ErrorCode::misuse,
                 .text = std::string(what) + " was called " + where +
                         "; expected between steps, behind the update"});
  }
  for (const Bucket& bucket : plan.buckets) {
    await_update(bucket.id, nullptr);
  }
}

void RuntimeImpl::require_initialised(const char* what) const {
  for (const Bucket& bucket : plan.buckets) {
    if (versions[bucket.id] == 0) {
      throw Error({.code = ErrorCode::misuse,
                   .text = std::string(what) + ": the parameters of bucket " +
                           plan.describe(bucket.id, model) +
                           " were never initialised; call runtime.initialize() or load first",
                   .bucket = bucket.id});
    }
  }
}

std::vector<std::string> RuntimeImpl::exchange(const char* label, const std::string& own) {
  const Call guard(*this, label);
  // All-gather moves bits, whatever they mean as numbers.
  const auto gather = [&](const void* from, void* to, std::size_t bytes) {
    rank.collective(Channel::reduce,
                    {.op = Collective::all_gather,
                     .runtime = actors_->id(),
                     .label = label,
                     .input = from,
                     .output = to,
                     .numel = static_cast<std::int64_t>(bytes / sizeof(float))},
                    {});
  };
  const auto ranks = static_cast<std::size_t>(context.size());
  const std::uint64_t own_bytes = own.size();
  std::vector<std::uint64_t> bytes(ranks);
  gather(&own_bytes, bytes.data(), sizeof own_bytes);
  const std::size_t longest = std::ranges::max(bytes);
  const std::size_t room = (longest + sizeof(float) - 1) / sizeof(float) * sizeof(float);
  std::vector<std::string> all(ranks);
  if (room == 0) {
    return all;
  }
  std::vector<float> from(room / sizeof(float));
  std::vector<float> to(from.size() * ranks);
  std::memcpy(from.data(), own.data(), own.size());
  gather(from.data(), to.data(), room);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    all[peer].assign(reinterpret_cast<const char*>(to.data() + peer * from.size()),
                     static_cast<std::size_t>(bytes[peer]));
  }
  return all;
}

Buffer RuntimeImpl::gather_bucket(BucketId bucket) {
  const DType dtype = weight_dtype(plan.buckets[bucket].dtype);
  Buffer full = gather_bucket(bucket, dtype, weights_of_[bucket]);
  if (dtype == DType::f32) {
    return full;
  }
  const std::int64_t numel = layouts[bucket].numel_padded();
  Buffer wide = value_or_throw(
      device.allocate(numel * static_cast<std::int64_t>(sizeof(float)), Purpose::temporary));
  device.cast(Stream::caller(), dtype, full.data(), DType::f32, wide.data(), numel);
  return wide;
}

Buffer RuntimeImpl::gather_bucket(BucketId bucket, DType dtype, const void* own) {
  const BucketLayout& layout = layouts[bucket];
  Buffer full = value_or_throw(device.allocate(
      layout.numel_padded() * static_cast<std::int64_t>(size_of(dtype)), Purpose::temporary));
  EventSet after;
  after.add(updated_[bucket]);
  CollectiveCall call{.op = row_of(options.strategy).unshard_by,
                      .runtime = actors_->id(),
                      .bucket = bucket,
                      .label = "for an export",
                      .dtype = dtype,
                      .input = own,
                      .output = full.data(),
                      .numel = own_range(bucket).numel};
  if (call.op == Collective::broadcast) {
    call.root = plan.buckets[bucket].owner;
    call.numel = layout.numel_padded();
  }
  rank.collective(Channel::gather, call, after, groups_.of(plan.buckets[bucket]).group);
  return full;
}

void RuntimeImpl::broadcast_bucket(const Buffer& full, int root) {
  rank.collective(Channel::gather,
                  {.op = Collective::broadcast,
                   .runtime = actors_->id(),
                   .label = "of an expert's parameters",
                   .input = full.data(),
                   .output = full.data(),
                   .numel = full.bytes() / static_cast<std::int64_t>(sizeof(float)),
                   .root = root},
                  {});
}

void RuntimeImpl::give_up_save() {
  if (save) {
    save->give_up("its runtime ended before that");
  }
}

}  // namespace troupe
